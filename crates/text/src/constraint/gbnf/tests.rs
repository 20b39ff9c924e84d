//! Grammars of llama.cpp, translated and matched against texts.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use super::*;
use crate::constraint::{
    Constraint, ConstraintCompiler, ConstraintLimits, ConstraintMatcher, compiler::tests::bytes_tokenizer,
};

fn accepts(matcher: &mut ConstraintMatcher, text: &str) -> bool {
    let mut mask = [0u32; 9];
    for byte in text.bytes() {
        matcher.mask(&mut mask).unwrap();
        if mask[byte as usize / 32] >> (byte % 32) & 1 == 0 {
            return false;
        }
        matcher.commit(u32::from(byte)).unwrap();
    }
    matcher.mask(&mut mask).unwrap();
    mask[256 / 32] & 1 == 1
}

/// Makes a compiler with long time limits: the tests are not about time, and nothing is optimised.
fn patient_compiler() -> ConstraintCompiler {
    let limits = ConstraintLimits {
        compile_time: Duration::from_mins(1),
        longest_wait: Duration::from_mins(2),
        ..ConstraintLimits::default()
    };
    ConstraintCompiler::with_limits(&bytes_tokenizer(), limits).unwrap()
}

/// Checks that `grammar` allows `yes` as whole texts, and none of `no`.
#[track_caller]
fn check(grammar: &str, yes: &[&str], no: &[&str]) {
    let compiler = patient_compiler();
    let compiled = compiler
        .compile(&Constraint::gbnf(grammar))
        .unwrap_or_else(|error| panic!("{error}"));
    for text in yes {
        assert!(
            accepts(&mut compiled.matcher(&[256]), text),
            "{text:?} is refused"
        );
    }
    for text in no {
        assert!(
            !accepts(&mut compiled.matcher(&[256]), text),
            "{text:?} is accepted"
        );
    }
}

#[track_caller]
fn check_refused(grammar: &str, expected: &str) {
    assert_eq!(to_lark(grammar).unwrap_err().to_string(), expected);
}

#[test]
fn literals_and_escapes_are_taken_as_they_are() {
    check(
        r#"root ::= "a\"b\\c\n" "/" "\x41\u00e9""#,
        &["a\"b\\c\n/Aé"],
        &["a", "a\"b\\c\n/A"],
    );
}

#[test]
fn classes_ranges_and_negations() {
    check(r"root ::= [a-cX\]-]+", &["abc", "X]-"], &["", "d"]);
    check(r"root ::= [^a-c\n] .", &["d\n", "éa"], &["a.", "d"]);
}

#[test]
fn repetitions_with_and_without_counts() {
    check(
        r#"root ::= "a"{2} "b"{1,3} "c"{2,} "d"{,1} "e"*"#,
        &["aabcc", "aabbbcccde"],
        &["abcc", "aabbbbcc", "aabc"],
    );
}

#[test]
fn rules_groups_and_lines_that_continue() {
    let grammar =
        "# a comment\nroot ::= (\n  item # each\n  (\",\" item)*\n)?\n\nitem ::=\n  \"a\" |\n  \"b\"";
    check(grammar, &["", "a", "a,b,a"], &["a,", ",", "c"]);
}

#[test]
fn recursion_is_followed_to_its_end() {
    let grammar = "root ::= \"(\" root* \")\"";
    check(grammar, &["()", "(()())"], &["(", "(()", "())"]);
}

#[test]
fn parts_that_swallow_nothing_are_terminals() {
    let json = r#"root ::= value
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}"#;
    let lark = to_lark(json).unwrap();
    assert!(
        lark.contains(r"(?:[0-9a-fA-F]){4,4}"),
        "strings are whole terminals: {lark}"
    );
    let valid = [
        "{\"a\": [1, -2.5e3, {}], \"\\u00e9\":\n  null}",
        "[]",
        "\"x\" ",
        "true",
    ];
    check(json, &valid, &["{", "[1,]", "{\"a\" 1}", "tru", "\"a"]);
}

/// Each grammar is recursive, so that it is divided, and allows texts that a longest match would lose.
#[test]
fn terminals_that_would_swallow_are_divided() {
    let recursive = |rules: &str| format!("root ::= \"(\" root \")\" | main\n{rules}");
    let cases: [(&str, &[&str], &[&str]); 8] = [
        ("main ::= [a-z]+ \"z\"", &["az", "(zzz)"], &["z", "a"]),
        (
            "main ::= \"ab\" | \"abc\" \"d\" | \"ab\" \"ce\"",
            &["ab", "abcd", "(abce)"],
            &["abc"],
        ),
        (
            "main ::= a \"xyz\"\na ::= \"x\"* | \"xy\"",
            &["xyz", "xxyz", "xyxyz"],
            &["xy"],
        ),
        (
            "main ::= (\"a\" \"b\"?)+ \"b\" \"b\"",
            &["abb", "(abbb)", "aabb"],
            &["ab"],
        ),
        (
            "main ::= [0-9]{2} [0-9]{2,3} \"0\"",
            &["12340", "120000", "(123450)"],
            &["1230"],
        ),
        (
            "main ::= b? \"ba\"\nb ::= \"b\" \"a\"?",
            &["ba", "bba", "baba"],
            &["b", "bab"],
        ),
        (
            "main ::= k \" \" n | n \"=\"\nk ::= \"int\" | \"in\"\nn ::= [a-z]+",
            &["int x", "in int", "int="],
            &["int", "if x"],
        ),
        (
            "main ::= (\"-\" [^-]* )* \"--\"",
            &["--", "-a--", "-a-b--"],
            &["-a-"],
        ),
    ];
    for (rules, yes, no) in cases {
        check(&recursive(rules), yes, no);
    }
}

/// Terminals of Lark take the longest match; characters of GBNF do not.
#[test]
fn a_part_never_swallows_what_the_next_one_needs() {
    check("root ::= [a-z]* \"z\"", &["z", "abz", "zzz"], &["ab", ""]);
    // With recursion, hence character by character.
    let grammar = "root ::= \"[\" root \"]\" | name \"z\" | \"tr\" \"ue\" | \"truX\"\nname ::= [a-z]*";
    check(grammar, &["z", "[abz]", "true", "[[truX]]"], &["tru", "[tru]"]);
}

#[test]
fn what_has_no_translation_is_refused_with_its_line() {
    check_refused("", "the GBNF grammar, line 1: there is no rule `root`");
    check_refused("a ::= \"b\"", "the GBNF grammar, line 1: there is no rule `root`");
    check_refused(
        "root ::= \"a\"\n\nb ::= c",
        "the GBNF grammar, line 3: the rule `c` is not defined",
    );
    check_refused(
        "root ::= \"a",
        "the GBNF grammar, line 1: expected `\"` at the end of a text",
    );
    check_refused(
        "root ::= [a",
        "the GBNF grammar, line 1: expected `]` at the end of a class",
    );
    check_refused("root ::= (\"a\"", "the GBNF grammar, line 1: expected `)`");
    check_refused(
        "root ::= [z-a]",
        "the GBNF grammar, line 1: the range `z-a` ends before its beginning",
    );
    check_refused(
        "root ::= \"a\"{3,2}",
        "the GBNF grammar, line 1: a count ends below its beginning",
    );
    check_refused(
        "root ::= \"a\"{9999}",
        "the GBNF grammar, line 1: a count is 9999, the limit is 2000",
    );
    check_refused(
        "root ::= \"\\q\"",
        "the GBNF grammar, line 1: an escape is not known",
    );
    check_refused(
        "root ::= \"\\ud800\"",
        "the GBNF grammar, line 1: expected 4 hexadecimal digits of a character",
    );
    check_refused(
        "root ::= <think>",
        "the GBNF grammar, line 1: tokens (`<...>`) are not supported; write their text",
    );
    check_refused(
        &format!("root ::= \"a\"{}", "*".repeat(500_000)),
        "the GBNF grammar, line 1: a part is repeated more than 100 times over",
    );
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(5000), ")".repeat(5000));
    check_refused(
        &deep,
        "the GBNF grammar, line 1: groups are nested deeper than 100 levels",
    );
}

/// Returns a grammar of `levels` rules, each of which names the next `n_times` over; the last one is `"a"`.
fn doubling(levels: u32, n_times: usize) -> String {
    let mut grammar = "root ::= r0\n".to_owned();
    for rule in 0..levels {
        writeln!(
            grammar,
            "r{rule} ::={}",
            format!(" r{}", rule + 1).repeat(n_times)
        )
        .unwrap();
    }
    write!(grammar, "r{levels} ::= \"a\"").unwrap();
    grammar
}

/// None is recursive, and the expression of all of it would be too long.
#[test]
fn grammars_whose_expression_is_too_long_are_enforced() {
    for (levels, n_times) in [(9, 2_usize), (12, 2), (7, 4)] {
        let n_chars = n_times.pow(levels);
        let [whole, less, more] = [0, -1, 1].map(|by| "a".repeat(n_chars.strict_add_signed(by)));
        check(&doubling(levels, n_times), &[&whole], &[&less, &more, "", "b"]);
    }
}

#[test]
fn rules_that_refer_to_each_other_many_times_over_are_not_written_out() {
    let started = Instant::now();
    let grammar = doubling(40, 2);
    assert!(to_lark(&grammar).unwrap().len() < 200_000);
    assert!(started.elapsed().as_secs() < 5);
    let compiled = patient_compiler().compile(&Constraint::gbnf(grammar)).unwrap();
    assert!(
        !accepts(&mut compiled.matcher(&[256]), "aaa"),
        "the text has 2^40 characters"
    );
}

#[test]
fn a_grammar_without_a_finite_text_is_refused() {
    let compiler = ConstraintCompiler::new(&bytes_tokenizer()).unwrap();
    for grammar in ["root ::= \"a\" root", "root ::= a\na ::= b \"x\"\nb ::= \"y\" a"] {
        let refused = compiler.compile(&Constraint::gbnf(grammar)).unwrap_err();
        assert_eq!(refused.to_string(), "no finite text satisfies the GBNF grammar");
    }
}
