"""Split CUDA text into tokens, and refuse words that an rTask may not contain. Nothing is compiled or run here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rammer.errors import LoweringError

MAX_TEXT = 256 << 10  # characters of a file


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class Token:
    """A token. `kind`: name, number, string or mark. `space`: the white space before it, without comments."""

    kind: str
    text: str
    line: int
    space: str = ""

    def named(self, text: str) -> Token:
        """Return the token with another text."""
        return replace(self, text=text)


_TOKEN = re.compile(
    r"(?P<space>[ \t\r\f\v]+|\\\r?\n)|(?P<newline>\n)|(?P<comment>//[^\n]*|/\*.*?\*/)"
    r"|(?P<number>0[xX][0-9a-fA-F]+[uUlL]*|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFuUlL]*)|(?P<name>[A-Za-z_]\w*)"
    r'|(?P<string>"[^"\n\\]*")'
    r"|(?P<mark><<<|>>>|<<=|>>=|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|::|\#\#|[-+*/%&|^~!<>=?:;,.(){}\[\]#])",
    re.S | re.A,
)

# Words with no counterpart in an rTask, and why.
REFUSED = {
    r"asm|__asm__|__asm": "inline assembly is for one machine, and hides what it does",
    r"__shfl\w*|__ballot\w*|__any\w*|__all\w*|__activemask|__syncwarp|__reduce\w*_sync|__match\w*|__popc\w*_sync": (
        "it counts on waves of 32 threads"
    ),
    r"warpSize": "waves have 64 threads on some AMD GPUs, 32 on others",
    r"wmma|mma_sync|nvcuda": "tensor cores have another interface",
    r"cooperative_groups|cg|this_grid|this_thread_block|grid_group|thread_block|cudaLaunchCooperativeKernel": (
        "a vEU has block syncs only: no sync of a whole grid, no groups"
    ),
    r"tex[123]D\w*|texture|surface|surf[123]D\w*|cudaTextureObject_t": "there are no textures",
    r"atomic\w+": "rTasks share nothing while they run, and the order of atomics is not that of the operator",
    r"__threadfence\w*": "blocks must not talk to each other: rTasks are ordered by the plan alone",
    r"__syncthreads_(?:count|and|or)": "a vEU has plain block syncs only",
    r"cuda[A-Z]\w*": "only kernels are converted: no calls of the host's side, no kernels that launch others",
    r"__half2?|half2?|half_\w+|__nv_bfloat16\w*|nv_bfloat16\w*": "half floats are f16 here",
    r"__constant__|__managed__": "a global of the device: constants are tensors, or numbers in the text",
    r"volatile": "code that counts on warps in lock step, or on other blocks",
    r"printf|assert|malloc|free|new|delete|memcpy|memset|alloca": "an rTask computes its tile and nothing else",
    r"goto": "jumps hide block syncs",
    r"try|throw|catch": "there are no exceptions",
    r"template|typename|class|struct|union|enum|typedef|namespace|using|operator|decltype|virtual|friend": (
        "plain functions and plain types only"
    ),
    r"(?:float|double|int|uint|long|ulong|short|ushort|char|uchar|longlong)[1234]|make_\w+|dim3": (
        "vectors need tensors at multiples of their size, which a plan does not promise: use elements"
    ),
    r"thread_local|register|inline_asm|__builtin_\w+|__nanosleep|clock|clock64|globaltimer": "it has no meaning here",
    r"(?:mk|MK|simt|SIMT|rk|RK|rammer|RAMMER)_\w*": "names like this one are rammer's",
}
_REFUSED = re.compile("|".join(f"(?P<r{n}>{p})" for n, p in enumerate(REFUSED)))
_REASONS = tuple(REFUSED.values())

# Names with two leading underscores that are known; others are refused.
RESERVED = word_set(
    "__syncthreads __ldg __restrict__ __restrict __shared__ __global__ __device__ __host__ __launch_bounds__ "
    "__forceinline__ __inline__ __noinline__ __align__ __expf __logf __fdividef __sinf __cosf __powf __fmul_rn "
    "__fadd_rn __fsub_rn __fdiv_rn __fmaf_rn __frcp_rn __fsqrt_rn __frsqrt_rn __saturatef __mul24 __int_as_float "
    "__float_as_int "
)


def refusal(line: int, what: str, why: str) -> LoweringError:
    """Return a refusal with line, words and reason."""
    return LoweringError(f"line {line}: {what!r} cannot be converted: {why}")


def tokenize(text: str) -> list[Token]:
    """Return all tokens of a file. Raises LoweringError for a character that a kernel cannot contain."""
    if len(text) > MAX_TEXT:
        raise LoweringError(f"the kernel's text has {len(text)} characters; at most {MAX_TEXT} are read")
    tokens: list[Token] = []
    at, line, space = 0, 1, ""
    while at < len(text):
        found = _TOKEN.match(text, at)
        if not found:
            raise refusal(line, text[at : at + 1], "no character of a kernel")
        kind, word = str(found.lastgroup), found[0]
        lines = word.count("\n")
        if kind in ("space", "comment", "newline"):
            space += "\n" if kind == "newline" else " \\\n" if kind == "space" and lines else " " + "\n" * lines
        else:
            after = text[found.end() : found.end() + 1]
            if kind == "number" and (after.isalnum() or after in "_.'"):
                raise refusal(line, word + after, "no number")
            tokens.append(Token(kind, word, line, space))
            space = ""
        at, line = found.end(), line + lines
    for token, behind in zip(tokens, [*tokens[1:], None], strict=True):
        _check_mark(token, behind)
    return tokens


def _check_mark(token: Token, behind: Token | None) -> None:
    """Refuse marks with another meaning: digraphs, launches, lambdas, attributes, pasted names."""
    pair = token.text + behind.text if behind and not behind.space else ""
    if token.text in ("<<<", ">>>"):
        raise refusal(token.line, token.text, "a kernel cannot launch others: an rTask is one block")
    if token.text == "##":
        raise refusal(token.line, token.text, "pasted names hide what is called")
    if pair in ("%:", "<:", ":>", "<%", "%>", "[[", "({"):
        raise refusal(token.line, pair, "no mark of a plain kernel")


def check_words(tokens: Sequence[Token]) -> None:
    """Refuse words with no counterpart. Raises LoweringError with the first one's line."""
    for token in tokens:
        if token.kind == "string" and token.text != '"C"':
            raise refusal(token.line, token.text, "there is no text in a kernel")
        if token.kind != "name":
            continue
        if found := _REFUSED.fullmatch(token.text):
            raise refusal(token.line, token.text, _REASONS[int(str(found.lastgroup)[1:])])
        if token.text.startswith("__") and token.text not in RESERVED:
            raise refusal(token.line, token.text, "not known here")


def closing(tokens: Sequence[Token], opening: int) -> int:
    """Return the index of the bracket that closes the one at `opening`. Raises LoweringError."""
    pairs = {"(": ")", "[": "]", "{": "}"}
    open_: list[str] = []
    for at in range(opening, len(tokens)):
        text = tokens[at].text
        if text in pairs:
            open_.append(pairs[text])
        elif text in (")", "]", "}"):
            if open_.pop() != text:
                raise refusal(tokens[at].line, text, "it closes nothing")
            if not open_:
                return at
    raise refusal(tokens[opening].line, tokens[opening].text, "it is never closed")


def split(tokens: Sequence[Token], mark: str) -> list[list[Token]]:
    """Return the parts between marks outside of brackets; none for no tokens."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token.text, 0)
        if token.text == mark and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts if tokens else []


def text_of(tokens: Sequence[Token]) -> str:
    """Return the tokens as text, with the space between them."""
    return "".join(t.space + t.text for t in tokens)
