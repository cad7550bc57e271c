"""Small changes of Python code: another operator, constant, branch or argument, one at a time."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "in": "not in"}
COMPARISONS |= {"is not": "is", "not in": "in"}
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "**": "*", "@": "*", "|": "&", "&": "|"}
BUILTINS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
NAMES = {
    **BUILTINS,
    **{"sum": "mean", "mean": "sum", "amax": "amin"},
    **{"amin": "amax", "argmax": "argmin", "argsort": "sort", "sqrt": "square", "exp": "log", "log": "exp"},
    **{"floor": "ceil", "ceil": "floor", "relu": "abs", "softmax": "log_softmax", "clamp_min": "clamp_max"},
    **{"append": "count", "detach": "clone", "rsqrt": "sqrt", "zeros": "ones", "ones": "zeros"},
    **{"zeros_like": "ones_like", "ones_like": "zeros_like", "unlink": "exists", "fsync": "fstat", "flush": "tell"},
}
PROSE = re.compile(r"Error|warn|log|info|print|debug")  # calls whose arguments are sentences
# What no test on a CPU can notice: where a tensor is, and how it is copied there.
GPU_ALONE = ("device", "non_blocking", "pin_memory")
# Guards against mistakes in the code itself, which a correct program never trips.
GUARDS = {("zip", "strict"), ("dataclass", "frozen"), ("dataclass", "slots")}


@dataclass(frozen=True)
class Mutant:
    """One change: what stands between two positions of a file, and what stands there instead."""

    file: str
    line: int
    start: int  # in bytes, from the beginning of the file
    end: int
    old: str
    new: str
    at_import: bool = False  # outside of every function's body

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {_short(self.old)!r} → {_short(self.new)!r}"

    def apply(self, root: Path) -> None:
        path = root / self.file
        content = path.read_bytes()
        assert content[self.start : self.end].decode() == self.old, f"{self.file} has changed"
        path.write_bytes(content[: self.start] + self.new.encode() + content[self.end :])


def mutants(root: Path, file: Path) -> list[Mutant]:
    """Every change of a file that is known here, in its order."""
    finder = _Finder(str(file.relative_to(root)), file.read_bytes())
    finder.visit(ast.parse(finder.content))
    return sorted(set(finder.found), key=lambda mutant: (mutant.start, mutant.end, mutant.new))


class _Finder(ast.NodeVisitor):
    def __init__(self, file: str, content: bytes) -> None:
        self.file, self.content, self.found = file, content, list[Mutant]()
        self.depth = 0  # of functions
        self.axes: set[ast.AST] = set()  # expressions that may count axes or positions
        self.starts = [0]
        for line in content.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def change(self, start: int, end: int, new: str) -> None:
        line = self.content.count(b"\n", 0, start) + 1
        old = self.content[start:end].decode()
        self.found.append(Mutant(self.file, line, start, end, old, new, at_import=self.depth == 0))

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def replace(self, node: ast.AST, new: str) -> None:
        self.change(*self.span(node), new)

    def operator(self, left: ast.AST, right: ast.AST, table: dict[str, str]) -> None:
        """Exchange what stands between two operands, parentheses left alone."""
        start, end = self.span(left)[1], self.span(right)[0]
        between = self.content[start:end].decode()
        match = re.search(
            r"[^\s()\\]+( not| in)?(?=[\s(]|$)", re.sub(r"#.*", lambda found: " " * len(found[0]), between)
        )
        if match and match[0] in table:
            at = start + len(between[: match.start()].encode())
            self.change(at, at + len(match[0].encode()), table[match[0]])

    # what is no code of its own: annotations, sentences, what only type checkers read

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        pass

    def visit_Raise(self, node: ast.Raise) -> None:
        self.replace(node, "pass")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_Import(self, node: ast.Import) -> None:
        pass

    visit_ImportFrom = visit_Assert = visit_Import

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.dump(node.test):
            self.condition(node.test)
            self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not node.name.startswith(("__repr", "__str")):
            for default in [*node.args.defaults, *(value for value in node.args.kw_defaults if value)]:
                self.visit(default)
            self.depth += 1
            for statement in node.body:
                self.visit(statement)
            self.depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    # what is changed

    def condition(self, test: ast.expr) -> None:
        start, end = self.span(test)
        self.change(start, end, f"not ({self.content[start:end].decode()})")

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.condition(node.test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
            self.operator(left, right, COMPARISONS)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.operator(left, right, {"and": "or", "or": "and"})
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if _is_size(node):
            return
        if not isinstance(node.left, ast.JoinedStr | ast.Dict | ast.List) and not isinstance(node.right, ast.JoinedStr):
            self.operator(node.left, node.right, ARITHMETIC)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.operator(node.target, node.value, {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*="})
        self.visit(node.value)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub) and node not in self.axes:
            start = self.span(node)[0]
            self.change(start, start + (4 if isinstance(node.op, ast.Not) else 1), "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.replace(node, str(not node.value))
        elif isinstance(node.value, int):
            self.replace(node, str(node.value + 1))
        elif isinstance(node.value, float):
            self.replace(node, repr(node.value * 2 or 1.0))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        end = self.span(node)[1]
        if node.attr in NAMES:
            self.change(end - len(node.attr), end, NAMES[node.attr])
        if node.attr in ("mT", "T"):
            self.change(end - len(node.attr) - 1, end, "")
        self.visit(node.value)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in BUILTINS and isinstance(node.ctx, ast.Load):
            self.replace(node, BUILTINS[node.id])

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        if PROSE.search(name):
            return
        node.keywords = [word for word in node.keywords if _is_tested(name, word.arg)]
        self._note_axes([*node.args, *(word.value for word in node.keywords if word.arg in ("dim", "axis"))])
        for keyword in node.keywords:
            if keyword.arg and not isinstance(keyword.value, ast.Constant):  # constants are changed themselves
                start, end = self.starts[keyword.lineno - 1] + keyword.col_offset, self.span(keyword.value)[1]
                tail = re.match(rb"\s*,?\s*", self.content[end:])
                self.change(start, end + (tail.end() if tail else 0), "")
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._note_axes([node.slice])
        self.generic_visit(node)

    def _note_axes(self, places: list[ast.expr]) -> None:
        """−1 becomes −2 here, as every constant is changed, and not 1, which often is the same axis."""
        parts = [part for place in places for part in (place.elts if isinstance(place, ast.Tuple) else [place])]
        for part in parts:
            match part:
                case ast.UnaryOp(ast.USub(), ast.Constant(int())):
                    self.axes.add(part)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        if not (isinstance(node.value, ast.Call) and PROSE.search(ast.unparse(node.value.func))):
            self.replace(node, "pass")
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self.replace(node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self.replace(node, "continue")


def _is_size(node: ast.BinOp) -> bool:
    """A buffer, a limit or a threshold of round size, as 2**24 or 1 << 20: any near it would do."""
    match node:
        case ast.BinOp(ast.Constant(1), ast.LShift(), ast.Constant(power)):
            return isinstance(power, int) and power >= 10
        case ast.BinOp(ast.Constant(2), ast.Pow(), ast.Constant(power)):
            return isinstance(power, int) and power >= 10
    return False


def _is_tested(function: str, keyword: str | None) -> bool:
    return keyword not in GPU_ALONE and (function.rpartition(".")[2], keyword) not in GUARDS


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:40]}…{line[-15:]}"


def walk(root: Path, areas: tuple[str, ...]) -> Iterator[Path]:
    for area in areas:
        place = root / "opencrate" / area
        yield from sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
