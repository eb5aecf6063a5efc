// Classify an image of stripes in Node.
import { readFile } from "node:fs/promises";
import { open } from "./model.mjs";

const classify = await open(await readFile("web/stripes.wasm"), "stripes");
const image = Float32Array.from({ length: 32 * 32 }, (_, n) => (n / 32) & 4 ? 1 : 0);
const [horizontal, vertical] = classify(image);
console.log(horizontal > vertical ? "horizontal" : "vertical");
