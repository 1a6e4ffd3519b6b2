# SPDX-License-Identifier: Apache-2.0
"""Finds what can be got wrong in a C file, and says how to get it wrong.

A mutant is one edit of one file. Its name, FILE:FUNCTION:OPERATOR:N, stays when other functions change.

    drop       a call is left out, with the wait for its answer
    unset      a constant is not assigned to a member
    swap       a call that is waited for changes places, with its wait, with the statement beside it
    hasten     an acknowledgement, or its record, comes before all else of its block
    retry      a sync of data that failed is done once more, as if that said anything about the first
    always     a condition, or a wait for it, holds
    never      a condition does not hold
    boundary   < becomes <=, > becomes >=, and back
    left       of two conditions joined by && or ||, only the left one is asked
    right      only the right one
    plain      a negation inside of a condition is left out
    bound      ckpt_min_u64(a, b) and its like become a, or b
"""
import hashlib
import re
from dataclasses import dataclass

import tree_sitter
import tree_sitter_c

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_c.language()))

# What only says something, or only stops what cannot be.
TELLING = {"ckpt_log", "ckpt_fail", "ckpt_fail_at", "ckpt_file_fail", "CKPT_ASSERT"}
FRAME = {"CKPT_ASSERT", "CKPT_AWAIT", "CKPT_TASK_BEGIN", "ckpt_log"}
BOUNDS = {"ckpt_min_u64", "ckpt_max_u64", "ckpt_min_size", "ckpt_max_size"}
WIDER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
COMPARISONS = {*WIDER, "==", "!="}
# What must not be taken for done when its second try succeeds.
FINAL = re.compile(r"FDATASYNC|_seal\b")
ANSWERS = re.compile(r"\bckpt_core_answer\b|\bckpt_latch_set\b|\w+_answer_end\b|->committed = true")


@dataclass(frozen=True)
class Mutant:
    """One edit of one file: bytes start..end become new. `function` is a digest of the function's text."""

    name: str
    file: str
    start: int
    end: int
    new: bytes
    function: str

    def apply(self, text):
        return text[:self.start] + self.new + text[self.end:]


def text_of(node):
    return node.text.decode()


def callee(node):
    """The name of the function that a statement or expression calls; None if it calls none."""
    if node.type in ("expression_statement", "parenthesized_expression") and node.named_children:
        return callee(node.named_children[0])
    if node.type == "cast_expression":
        return callee(node.child_by_field_name("value"))
    if node.type != "call_expression":
        return None
    return text_of(node.child_by_field_name("function"))


def arguments(call):
    while call.type != "call_expression":
        call = call.named_children[-1]
    return [n for n in call.child_by_field_name("arguments").named_children if n.type != "comment"]


def bare(node):
    """Without the parentheses around it."""
    while node.type == "parenthesized_expression":
        node = next(n for n in node.named_children if n.type != "comment")
    return node


def operator(node):
    child = node.child_by_field_name("operator")
    return text_of(child) if child else None


def is_boolean(node):
    node = bare(node)
    if node.type == "binary_expression":
        return operator(node) in COMPARISONS | {"&&", "||"}
    return node.type == "unary_expression" and operator(node) == "!"


def function_name(definition):
    node = definition
    while node.type != "identifier":
        node = node.child_by_field_name("declarator") or next(
            n for n in node.named_children if n.type == "function_declarator")
    return text_of(node)


class Finder:
    """Collects the mutants of one function."""

    def __init__(self, file, source):
        self.file = file
        self.source = source
        self.found = []

    def add(self, kind, start, end, new):
        # Lines keep their numbers where that can be: what compiles to the same code is then the same.
        lines = self.source.count(b"\n", start, end) - new.count(b"\n")
        self.found.append((kind, start, end, new + b"\n" * lines))

    def text(self, node):
        return self.source[node.start_byte:node.end_byte].decode()

    def replace(self, kind, node, new):
        self.add(kind, node.start_byte, node.end_byte, new.encode())

    def visit(self, node):
        if callee(node) in TELLING:
            return
        if node.type == "compound_statement" or node.type == "case_statement":
            self.visit_block(node)
        if node.type in ("if_statement", "conditional_expression"):
            self.visit_root(node.child_by_field_name("condition"), ("always", "never"))
        elif node.type in ("while_statement", "do_statement", "for_statement"):
            condition = node.child_by_field_name("condition")
            if condition:
                self.visit_root(condition, ("never",))
        elif node.type == "expression_statement" and callee(node) == "CKPT_AWAIT":
            self.visit_root(arguments(node)[1], ("always",))
        elif callee(node) in BOUNDS and node.type == "call_expression":
            for argument in arguments(node):
                self.replace("bound", node, f"({self.text(argument)})")
        elif is_boolean(node) and node.type != "parenthesized_expression" and not self.in_root(node):
            self.visit_root(node, ("always", "never"))
        if node.type == "binary_expression" and is_boolean(node):
            self.visit_binary(node)
        if node.type == "unary_expression" and operator(node) == "!" and self.is_operand(node):
            self.replace("plain", node, self.text(node.child_by_field_name("argument")))
        if node.type == "expression_statement":
            self.visit_statement(node)
        for child in node.named_children:
            self.visit(child)

    @staticmethod
    def is_operand(node):
        """Of && or || or !, in parentheses or not."""
        above = node.parent
        while above.type == "parenthesized_expression":
            above = above.parent
        return is_boolean(above) and operator(above) in ("&&", "||", "!")

    def in_root(self, node):
        """It is a part of a condition that was, or will be, visited as a whole."""
        above = node.parent
        while above.type == "parenthesized_expression":
            node, above = above, above.parent
        if above.type in ("if_statement", "conditional_expression", "while_statement", "do_statement",
                          "for_statement"):
            return above.child_by_field_name("condition") == node
        if above.type == "argument_list" and callee(above.parent) == "CKPT_AWAIT":
            return True
        return self.is_operand(node)

    def visit_root(self, node, ways):
        node = bare(node)
        if text_of(node) in ("true", "false", "0", "1"):
            return
        for way in ways:
            # The operands stay: what is only asked about is not unused.
            truth = "|| true" if way == "always" else "&& false"
            self.replace(way, node, f"(({self.text(node)}) {truth})")

    def visit_binary(self, node):
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        sign = node.child_by_field_name("operator")
        if text_of(sign) in WIDER:
            self.replace("boundary", sign, WIDER[text_of(sign)])
        elif text_of(sign) in ("&&", "||"):
            self.replace("left", node, f"({self.text(left)})")
            self.replace("right", node, f"({self.text(right)})")

    def visit_statement(self, node):
        if callee(node) and callee(node) not in FRAME:
            self.add("drop", node.start_byte, self.unit_end(node), b";")
            self.visit_retry(node)
        inner = node.named_children[0] if node.named_children else node
        if inner.type == "assignment_expression" and operator(inner) == "=":
            left, right = inner.child_by_field_name("left"), inner.child_by_field_name("right")
            if left.type == "field_expression" and re.fullmatch(
                    r"true|false|NULL|-?\d+|[A-Z][A-Z0-9_]+", text_of(right)):
                self.replace("unset", node, ";")

    @staticmethod
    def following(node):
        node = node.next_named_sibling
        while node and node.type == "comment":
            node = node.next_named_sibling
        return node

    def unit_end(self, node):
        """A call ends with the wait for its answer."""
        after = self.following(node)
        waits = after and after.type == "expression_statement" and callee(after) == "CKPT_AWAIT"
        return after.end_byte if waits else node.end_byte

    def visit_retry(self, node):
        end = self.unit_end(node)
        if end == node.end_byte or not FINAL.search(text_of(node)):
            return
        if callee(node).startswith("ckpt_store_"):
            op = text_of(arguments(node)[1])
            result = op[1:] + ".result" if op.startswith("&") else op + "->result"
        else:
            result = text_of(arguments(node)[0]) + "->req.result"
        deed = self.source[node.start_byte:end]
        self.add("retry", node.start_byte, end,
                 deed + f"\nif ({result} < 0) {{\n".encode() + deed + b"\n}\n")

    def visit_block(self, block):
        statements = [n for n in block.named_children if n.type != "comment"]
        units, skip = [], False
        for node in statements:
            if skip:
                skip = False
                continue
            end = self.unit_end(node) if node.type == "expression_statement" else node.end_byte
            skip = end != node.end_byte
            units.append((node, end))
        for (node, end), (after, after_end) in zip(units, units[1:], strict=False):
            if not self.may_move(node) or not self.may_move(after):
                continue
            if end != node.end_byte or after_end != after.end_byte:
                first, between, second = (self.source[node.start_byte:end],
                                          self.source[end:after.start_byte],
                                          self.source[after.start_byte:after_end])
                self.add("swap", node.start_byte, after_end, second + between + first)
        self.visit_haste(units)

    @staticmethod
    def may_move(node):
        return node.type == "expression_statement" and callee(node) not in (
            "CKPT_TASK_BEGIN", "CKPT_ASSERT", "ckpt_log", "CKPT_AWAIT")

    def visit_haste(self, units):
        """To the place after the declarations; the swap with the one before is another mutant."""
        first = 0
        while first < len(units) and (units[first][0].type == "declaration" or
                                      callee(units[first][0]) in ("CKPT_TASK_BEGIN", "CKPT_ASSERT")):
            first += 1
        for at, (node, end) in enumerate(units):
            if at < first + 2 or node.type != "expression_statement" or not ANSWERS.search(
                    text_of(node)):
                continue
            start = units[first][0].start_byte
            self.add("hasten", start, end, self.source[node.start_byte:end] + b" " +
                     self.source[start:node.start_byte])


def mutants_of(file, source):
    """All of a file, in the order of its text."""
    # A type among the arguments of a macro is no C before the preprocessor: for the parser it is a name.
    tree = PARSER.parse(re.sub(rb"(\(|, )struct (?=\w+,)", rb"\1struct_", source))
    if tree.root_node.has_error:
        raise ValueError(f"{file} cannot be parsed")
    mutants = []
    for definition in tree.root_node.named_children:
        if definition.type != "function_definition":
            continue
        finder = Finder(file, source)
        finder.visit(definition.child_by_field_name("body"))
        counts = {}
        digest = hashlib.sha256(definition.text).hexdigest()[:16]
        name = file.removeprefix("libckpt/") + ":" + function_name(definition)
        seen = set()
        for kind, start, end, new in finder.found:
            if (start, end, new) in seen:
                continue
            seen.add((start, end, new))
            counts[kind] = counts.get(kind, 0) + 1
            mutants.append(Mutant(f"{name}:{kind}:{counts[kind]}", file, start, end, new, digest))
    return mutants
