"""The mutation operators: what in a file of Python can be turned wrong by one plausible edit.

An operator looks at one node of the syntax tree and offers edits of the text. Those of cosmic-ray and mutmut were
looked at first; why these are our own stands in the project's log. Left alone are texts (strings, what is raised,
``__repr__``), annotations, imports, what only asserts (``assert``, ``strict=`` of a zip), and whatever would fail on
its first execution for reasons that say nothing.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """One way to turn a file wrong: replace the text from ``start`` to ``end`` (offsets in characters)."""

    operator: str
    start: int
    end: int
    new: str
    line: int
    statement: int  # first line of the innermost statement that holds it
    function: str  # qualified name of the outermost function or method; of the class, or "", outside of one
    ordinal: int = 0  # among the edits of this operator in this function

    def applied(self, source: str) -> str:
        return source[: self.start] + self.new + source[self.end :]


class Text:
    """A source and the offsets of its nodes."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._wide = not source.isascii()

    def offset(self, line: int, column: int) -> int:
        """Of a place as ast says it, whose columns count bytes."""
        start = self._lines[line - 1]
        if self._wide:
            column = len(self.source[start : self._lines[line]].encode()[:column].decode())
        return start + column

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.expr | ast.stmt | ast.keyword) -> str:
        start, end = self.span(node)
        return self.source[start:end]


@dataclass(frozen=True)
class Place:
    """Where in the tree the walk stands, and the text that the tree was read from."""

    text: Text
    statement: int = 1
    function: str = ""
    node: ast.FunctionDef | ast.AsyncFunctionDef | None = None  # the innermost function
    owner: ast.ClassDef | None = None  # the innermost class
    top: bool = True  # whether the statement is in the body of the function itself, not in a block of it


Found = Iterator[tuple[str, ast.expr | ast.stmt | ast.keyword | tuple[int, int], str]]  # operator, what, new text
Operator = Callable[[ast.AST, Place], Found]

_BOUNDS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_EQUALITIES = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"
}  # fmt: skip
_SYMBOLS: dict[type[ast.AST], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/",
    ast.FloorDiv: "//", ast.Mod: "%",
}  # fmt: skip
_ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//"}
#: names of the field that are taken for one another
_PAIRS = (
    ("dst", "group_dst"), ("src", "group_src"), ("min", "max"), ("any", "all"), ("zeros_like", "ones_like"),
    ("zeros", "ones"), ("rank", "size"), ("global_rank", "group_rank"), ("SUM", "MAX"), ("values", "keys"),
    ("issubset", "issuperset"), ("difference", "intersection"), ("is_sparse", "is_complex"), ("first", "last"),
    ("parameters", "buffers"), ("named_parameters", "named_buffers"), ("requires_grad", "is_leaf"), ("add", "discard"),
)  # fmt: skip
_OTHER_NAME = {**dict(_PAIRS), **{second: first for first, second in _PAIRS}}
_COPIES = ("clone", "detach", "copy", "contiguous", "tolist")
_COPYING = ("list", "tuple", "dict", "set", "frozenset", "sorted", "reversed", "deepcopy")
_WITH_DEFAULT = {"get": 2, "pop": 2, "getattr": 3, "next": 2, "setdefault": 2}
_OF_TWO_KINDS = ("isinstance", "cast", "getattr", "hasattr", "setattr")  # swapped, no program would run


# --- conditions -------------------------------------------------------------------------------------------------------


def conditions(node: ast.AST, place: Place) -> Found:
    """Negated, or forced one way; a filter of a comprehension left out."""
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        words = place.text.of(node.test)
        if not _is_inverted_anyway(node.test) and not isinstance(node.test, ast.Constant):
            bare = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
            yield "condition negated", node.test, place.text.of(node.test.operand) if bare else f"not ({words})"  # type: ignore[attr-defined]
            yield "condition forced", node.test, "False"
            if not isinstance(node, ast.While):
                yield "condition forced", node.test, "True"
    if isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield "filter left out", test, "True"


def comparisons(node: ast.AST, place: Place) -> Found:
    """A bound shifted by one, equal taken for unequal."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        return
    (op,), (right,) = node.ops, node.comparators
    left_end, right_start = place.text.span(node.left)[1], place.text.span(right)[0]
    for name, table in (("bound shifted", _BOUNDS), ("comparison inverted", _EQUALITIES)):
        if type(op) in table:
            between = place.text.source[left_end:right_start]
            before, _, after = between.partition(_SYMBOLS[type(op)])
            yield name, (left_end, right_start), f"{before}{table[type(op)]}{after}"


def junctions(node: ast.AST, place: Place) -> Found:
    """``and`` taken for ``or``, or one of several operands forgotten."""
    if not isinstance(node, ast.BoolOp):
        return
    word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
    for left, right in itertools.pairwise(node.values):
        start, end = place.text.span(left)[1], place.text.span(right)[0]
        if len(node.values) == 2:
            before, _, after = place.text.source[start:end].partition(word)
            yield "and/or swapped", (start, end), f"{before}{other}{after}"
    for index in range(len(node.values)):
        rest = [place.text.of(value) for at, value in enumerate(node.values) if at != index]
        yield "operand dropped", node, f"({f' {word} '.join(rest)})"


def negations(node: ast.AST, place: Place) -> Found:
    """A ``not`` or a minus forgotten."""
    if not isinstance(node, ast.UnaryOp) or isinstance(node.operand, ast.Constant):
        return
    if isinstance(node.op, ast.Not | ast.USub):
        yield "sign dropped", node, f"({place.text.of(node.operand)})"


def _is_inverted_anyway(node: ast.expr) -> bool:
    """Whether this is a comparison that ``comparisons`` inverts, which is the same as negating it."""
    return isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _EQUALITIES


# --- calls ------------------------------------------------------------------------------------------------------------


def arguments(node: ast.AST, place: Place) -> Found:
    """Two neighbours swapped, a keyword dropped, a fallback left out."""
    if not isinstance(node, ast.Call):
        return
    plain = [each for each in node.args if not isinstance(each, ast.Starred)]
    if len(plain) == len(node.args):
        for left, right in itertools.pairwise(plain):
            if place.text.of(left) != place.text.of(right) and _called(node) not in _OF_TWO_KINDS:
                start, end = place.text.span(left)[0], place.text.span(right)[1]
                between = place.text.source[place.text.span(left)[1] : place.text.span(right)[0]]
                yield "arguments swapped", (start, end), f"{place.text.of(right)}{between}{place.text.of(left)}"
        if len(plain) == _WITH_DEFAULT.get(_called(node)) and not node.keywords:
            yield "fallback dropped", (place.text.span(plain[-2])[1], place.text.span(plain[-1])[1]), ""
    for keyword in node.keywords:
        if keyword.arg not in (None, "strict"):
            yield "keyword dropped", _with_comma(place.text, node, keyword), ""


def _with_comma(text: Text, call: ast.Call, keyword: ast.keyword) -> tuple[int, int]:
    """A keyword with the comma after it, or before it where it is the last."""
    start, end = text.span(keyword)
    rest = text.source[end : text.span(call)[1]]
    after = rest.lstrip()
    if after.startswith(","):
        return start, end + len(rest) - len(after) + 1
    before = text.source[:start].rstrip()
    return (len(before) - 1, end) if before.endswith(",") else (start, end)


def copies(node: ast.AST, place: Place) -> Found:
    """A copy, or an order, left out."""
    if not isinstance(node, ast.Call) or node.keywords:
        return
    func, name = node.func, _called(node)
    if isinstance(func, ast.Attribute) and name in _COPIES and not node.args:
        yield "copy left out", node, place.text.of(func.value)
    bare = isinstance(func, ast.Name) or (isinstance(func, ast.Attribute) and place.text.of(func.value) == "copy")
    whole = len(node.args) == 1 and not isinstance(node.args[0], ast.Starred | ast.GeneratorExp)
    if bare and whole and name in (*_COPYING, "copy"):
        inner = place.text.of(node.args[0])
        yield "copy left out", node, f"list({inner})" if name == "sorted" else inner


def names(node: ast.AST, place: Place) -> Found:
    """A name of the field taken for its neighbour; one argument or attribute for another of the same type."""
    if isinstance(node, ast.keyword) and node.arg in _OTHER_NAME:
        start, _ = place.text.span(node)
        yield "name confused", (start, start + len(node.arg)), _OTHER_NAME[node.arg]
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        end = place.text.span(node)[1]
        if node.attr in _OTHER_NAME:
            yield "name confused", (end - len(node.attr), end), _OTHER_NAME[node.attr]
        if isinstance(node.value, ast.Name) and node.value.id == "self" and place.owner is not None:
            for other in _same_type(_attributes(place.owner), node.attr):
                yield "attribute confused", (end - len(node.attr), end), other
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        if node.id in ("min", "max", "any", "all"):
            yield "name confused", node, _OTHER_NAME[node.id]
        if place.node is not None:
            for other in _same_type(_parameters(place.node), node.id):
                yield "variable confused", node, other


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@functools.lru_cache(maxsize=64)  # asked for at every name of it
def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    found = {each.arg: ast.unparse(each.annotation) for each in given if each.annotation is not None}
    for node in ast.walk(function):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = ast.unparse(node.annotation)
    return found


@functools.lru_cache(maxsize=64)
def _attributes(owner: ast.ClassDef) -> dict[str, str]:
    """The attributes of a class whose type is written down: fields, ``self.x: T = …``, and properties."""
    found: dict[str, str] = {}
    for node in ast.walk(owner):
        if isinstance(node, ast.AnnAssign):
            target = node.target
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                found[target.attr] = ast.unparse(node.annotation)
    for statement in owner.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found[statement.target.id] = ast.unparse(statement.annotation)
        if isinstance(statement, ast.FunctionDef) and statement.returns is not None and _is_property(statement):
            found[statement.name] = ast.unparse(statement.returns)
    return found


def _is_property(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(each) == "property" for each in function.decorator_list)


def _same_type(types: dict[str, str], name: str) -> list[str]:
    return [other for other, kind in types.items() if other != name and kind == types.get(name)]


# --- values -----------------------------------------------------------------------------------------------------------


def constants(node: ast.AST, place: Place) -> Found:
    """A whole number off by one, a truth value inverted, the first taken for the last."""
    if isinstance(node, ast.Subscript):
        index = place.text.of(node.slice)
        if index in ("0", "-1"):
            yield "ends confused", node.slice, "-1" if index == "0" else "0"
        if isinstance(node.slice, ast.Slice):
            for bound in (node.slice.lower, node.slice.upper, node.slice.step):
                if bound is not None:
                    yield "slice bound dropped", bound, ""
    if not isinstance(node, ast.Constant):
        return
    if isinstance(node.value, bool):
        yield "truth inverted", node, str(not node.value)
    elif isinstance(node.value, int):
        yield "constant off by one", node, str(node.value + 1)
        if node.value > 0:
            yield "constant off by one", node, str(node.value - 1)


def arithmetic(node: ast.AST, place: Place) -> Found:
    """One operation taken for another; adding taken for setting."""
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not any(map(_is_text, (node.left, node.right))):
        start, end = place.text.span(node.left)[1], place.text.span(node.right)[0]
        before, _, after = place.text.source[start:end].partition(_SYMBOLS[type(node.op)])
        yield "arithmetic", (start, end), f"{before}{_ARITHMETIC[type(node.op)]}{after}"
    if isinstance(node, ast.AugAssign):
        yield "added taken for set", node, f"{place.text.of(node.target)} = {place.text.of(node.value)}"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


# --- statements -------------------------------------------------------------------------------------------------------


def statements(node: ast.AST, place: Place) -> Found:
    """Deleted: a call, an attribute or element not set; a function that returns too early; a loop left otherwise."""
    if place.node is None or not isinstance(node, ast.stmt):
        return
    if _is_deletable(node, place.node):
        yield "statement deleted", node, "pass"
    if isinstance(node, ast.Break | ast.Continue):
        yield "loop left otherwise", node, "continue" if isinstance(node, ast.Break) else "break"
    if place.top and _returns_nothing(place.node) and node in place.node.body[:-1] and not _is_docstring(node):
        start = place.text.span(node)[0]
        yield "early return", (start, start), "return\n" + " " * node.col_offset
    if isinstance(node, ast.With) and all(item.optional_vars is None for item in node.items):
        start, end = place.text.span(node)[0], place.text.span(node.items[-1].context_expr)[1]
        yield "context left out", (start, place.text.source.index(":", end)), "if True"


def _is_deletable(node: ast.stmt, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and "super()" not in ast.unparse(node.value)
    if isinstance(node, ast.AugAssign | ast.Delete):
        return True
    if isinstance(node, ast.Assign) and function.name not in ("__init__", "__post_init__"):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    return False


def _returns_nothing(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return isinstance(function.returns, ast.Constant) and function.returns.value is None and function.name != "__init__"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


OPERATORS: tuple[Operator, ...] = (
    conditions, comparisons, junctions, negations, arguments, copies, names, constants, arithmetic, statements,
)  # fmt: skip


# --- the walk ---------------------------------------------------------------------------------------------------------

_LEFT_ALONE = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Global, ast.Nonlocal)
_TEXTS = ("__repr__", "__str__", "describe", "warn")


def edits(source: str) -> list[Edit]:
    """Every edit of a file, in order of place. Before one is used, ask ``is_sound``."""
    text, tree = Text(source), ast.parse(source)
    numbers: dict[tuple[str, str], int] = {}
    found: list[Edit] = []
    for node, place in _walk(tree, Place(text)):
        for operator in OPERATORS:
            for name, what, new in operator(node, place):
                start, end = what if isinstance(what, tuple) else text.span(what)
                number = numbers[name, place.function] = numbers.get((name, place.function), 0) + 1
                line = source.count("\n", 0, start) + 1
                found.append(Edit(name, start, end, new, line, place.statement, place.function, number))
    return sorted(found, key=lambda edit: (edit.line, edit.operator, edit.start, edit.ordinal))


def is_sound(edit: Edit, source: str) -> bool:
    """Whether the edit leaves a program of Python, and another one than before."""
    try:
        return ast.dump(ast.parse(edit.applied(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def _walk(node: ast.AST, place: Place) -> Iterator[tuple[ast.AST, Place]]:
    for child in _children(node):
        inner = _placed(node, child, place)
        if isinstance(child, _LEFT_ALONE) or _is_left_alone(child):
            continue
        yield child, inner
        yield from _walk(child, inner)


def _placed(parent: ast.AST, child: ast.AST, place: Place) -> Place:
    function, node, owner = place.function, place.node, place.owner
    if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and child in parent.body:
        if node is None:
            function = f"{function}.{parent.name}".lstrip(".")
        node = parent if not isinstance(parent, ast.ClassDef) else node
        owner = parent if isinstance(parent, ast.ClassDef) else owner
    elif isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and node is None:
        function = f"{function}.{parent.name}".lstrip(".")  # a default or decorator belongs to its function
    statement = child.lineno if isinstance(child, ast.stmt) else place.statement
    top = node is not None and child in node.body if isinstance(child, ast.stmt) else place.top
    return Place(place.text, statement, function, node, owner, top)


def _children(node: ast.AST) -> Sequence[ast.AST]:
    """The parts of a node that may be turned wrong: no annotation, no decorator."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        defaults = [each for each in (*node.args.defaults, *node.args.kw_defaults) if each is not None]
        return [*defaults, *node.body]
    if isinstance(node, ast.ClassDef):
        return node.body
    if isinstance(node, ast.AnnAssign):
        return [node.target, *([node.value] if node.value is not None else [])]
    if isinstance(node, ast.arguments):
        return [each for each in (*node.defaults, *node.kw_defaults) if each is not None]
    return list(ast.iter_child_nodes(node))


def _is_left_alone(node: ast.AST) -> bool:
    """What makes texts, only asserts, or is there for types and importers alone."""
    if isinstance(node, ast.FunctionDef):
        return node.name.lstrip("_").startswith(_TEXTS) or node.name in _TEXTS
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.keyword):
        return node.arg == "strict"
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
