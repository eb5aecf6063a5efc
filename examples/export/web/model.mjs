// Run an exported model in Node or in a page. It has one input and one output of float32.
export async function open(bytes, name) {
  const EBADF = 8; // what a library asks its host for are files, and here are none
  const wasi = new Proxy({}, { get: () => () => EBADF });
  const { instance } = await WebAssembly.instantiate(bytes, { wasi_snapshot_preview1: wasi });
  const c = instance.exports;
  c._initialize();
  const model = c[`${name}_model`].value;
  const word = (at) => new DataView(c.memory.buffer).getUint32(at, true);
  const found = c.malloc(4);
  const BYTES = 16; // where rammer_port has them
  const room = (ports) => (ports(model, found), { size: word(word(found) + BYTES), at: 0 });
  const [input, output] = [room(c.rammer_inputs), room(c.rammer_outputs)];
  const lists = [input, output].map((port) => {
    port.at = c.malloc(port.size);
    const list = c.malloc(4);
    new DataView(c.memory.buffer).setUint32(list, port.at, true);
    return list;
  });
  const array = (port) => new Float32Array(c.memory.buffer, port.at, port.size / 4);
  if (c.rammer_open(model, 0, found)) throw new Error("the model cannot be opened");
  const program = word(found);
  return (values) => {
    array(input).set(values);
    if (c.rammer_run(program, ...lists)) throw new Error("the run failed");
    return array(output).slice();
  };
}
