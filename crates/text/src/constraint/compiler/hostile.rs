//! Tests constraints that are made to overflow a compiler or to keep it busy, such as chains, cycles and diamonds of references in every
//! language. Each is refused or compiled, and its work ends soon after the answer.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use tokenmill_testkit::{Random, cases, rounds};

use super::{
    tests::{bytes_tokenizer, calls_of},
    *,
};

/// Selects how rules refer to each other.
#[derive(Clone, Copy, Debug)]
enum Way {
    Chain,
    /// The last refers to the first.
    Cycle,
    /// Each refers to the next two.
    Diamonds,
}

const WAYS: [Way; 3] = [Way::Chain, Way::Cycle, Way::Diamonds];

/// Lists the targets of each of `n` rules; the last rule can also end by itself.
fn links(way: Way, n: usize) -> Vec<Vec<usize>> {
    (0..n)
        .map(|idx| match way {
            _ if idx + 1 == n => match way {
                Way::Cycle => vec![0],
                _ => Vec::new(),
            },
            Way::Diamonds if idx + 2 < n => vec![idx + 1, idx + 2],
            _ => vec![idx + 1],
        })
        .collect()
}

/// Bodies of rules; `{}` stands for another rule.
const BODIES: [&str; 6] = [
    "{}",
    "{} \"a\" | \"b\"",
    "\"a\" {} | \"b\"",
    "\"a\" ({} | \"c\")* \"d\"",
    "\"(\" {} \")\" | \"e\"",
    "(((\"a\" ({})?)+))",
];

/// Writes a grammar whose rules are defined by `define`.
fn grammar(way: Way, n: usize, body: &str, first: &str, define: &str) -> String {
    let mut text = format!("{first} {define} r0\n");
    for (idx, to) in links(way, n).iter().enumerate() {
        let mut choices: Vec<String> = to
            .iter()
            .map(|to| body.replace("{}", &format!("r{to}")))
            .collect();
        if choices.is_empty() || matches!(way, Way::Cycle) {
            choices.push("\"z\"".to_owned());
        }
        text.extend([format!("r{idx} {define} "), choices.join(" | "), "\n".to_owned()]);
    }
    text
}

/// Lists schemas that refer to another.
fn schema_bodies() -> Vec<Value> {
    vec![
        json!({"$ref": "TO"}),
        json!({"anyOf": [{"$ref": "TO"}, {"type": "null"}]}),
        json!({"allOf": [{"$ref": "TO"}, {"type": "object"}]}),
        json!({"oneOf": [{"type": "string"}, {"$ref": "TO"}]}),
        json!({"type": "object", "properties": {"a": {"$ref": "TO"}}}),
        json!({"type": "array", "items": {"anyOf": [{"$ref": "TO"}, {"items": {"$ref": "TO"}}]}}),
        json!({"type": "object", "additionalProperties": {"$ref": "TO"}}),
    ]
}

/// Writes a schema whose definitions refer to each other.
fn schema(way: Way, n: usize, body: &Value) -> String {
    let body = body.to_string();
    let definitions = links(way, n).into_iter().enumerate().map(|(idx, to)| {
        let mut leads: Vec<String> = to
            .iter()
            .map(|to| body.replace("TO", &format!("#/$defs/a{to}")))
            .collect();
        if leads.is_empty() || matches!(way, Way::Cycle) && idx + 1 == n {
            leads.push("{\"type\":\"object\"}".to_owned());
        }
        match &leads[..] {
            [lead] => format!("\"a{idx}\":{lead}"),
            _ => format!("\"a{idx}\":{{\"anyOf\":[{}]}}", leads.join(",")),
        }
    });
    let definitions: Vec<String> = definitions.collect();
    format!(
        "{{\"$defs\":{{{}}},\"$ref\":\"#/$defs/a0\"}}",
        definitions.join(",")
    )
}

/// Lists all forms of a request that can hold such references, without schemas of more than `max_bytes`.
fn everything(way: Way, n: usize, max_bytes: usize) -> Vec<(String, Constraint)> {
    let mut all = Vec::new();
    for body in BODIES {
        let name = |language: &str| format!("{language}, {way:?} of {n}: {body}");
        all.push((
            name("GBNF"),
            Constraint::gbnf(grammar(way, n, body, "root", "::=")),
        ));
        all.push((
            name("Lark"),
            Constraint::lark(grammar(way, n, body, "start", ":")),
        ));
        let terminals = grammar(way, n, body, "start", ":")
            .replace('r', "R")
            .replace("staRt", "start");
        all.push((name("terminals"), Constraint::lark(terminals)));
    }
    for body in schema_bodies() {
        let name = |language: &str| format!("{language}, {way:?} of {n}: {body}");
        let schema = schema(way, n, &body);
        // A request with it is longer still. Making and reading megabytes only to leave them out took most of a test's time.
        if schema.len() > max_bytes {
            continue;
        }
        let schema: Value = serde_json::from_str(&schema).expect("a schema");
        all.push((name("schema"), Constraint::json_schema(&schema)));
        let mut arguments = schema.clone();
        arguments["type"] = "object".into();
        all.push((name("calls"), calls_of(&[("f", arguments)], true)));
        all.push((
            name("%json"),
            Constraint::lark(format!("start: \"x\" a\na: %json {schema}\n")),
        ));
    }
    all
}

/// Most CPU time of a compilation in a build without optimisation, also of one whose answer is no longer awaited.
const MAX_WORK: Duration = Duration::from_secs(20);

/// Makes a compiler with enough time to count references before it refuses them, also in a build without optimisation.
fn patient_compiler() -> ConstraintCompiler {
    let limits = ConstraintLimits {
        compile_time: Duration::from_secs(4),
        longest_wait: Duration::from_mins(5),
        ..ConstraintLimits::default()
    };
    ConstraintCompiler::with_limits(&bytes_tokenizer(), limits).unwrap()
}

/// Compiles, and waits until all the work that it started has ended.
#[track_caller]
fn check_ends(
    compiler: &ConstraintCompiler,
    name: &str,
    constraint: &Constraint,
) -> Result<(), ConstraintError> {
    let compiled = compiler.compile(constraint).map(drop);
    let shared = &compiler.shared;
    while shared.places.n_running() > 0 {
        thread::sleep(Duration::from_millis(2));
    }
    let work = std::mem::take(&mut *lock(&shared.newest_work));
    assert!(work < MAX_WORK, "{name}: worked for {work:?}, {compiled:?}");
    compiled
}

#[test]
fn references_are_refused_before_they_overflow_a_stack() {
    let compiler = patient_compiler();
    let max_bytes = compiler.shared.limits.max_bytes;
    for way in WAYS {
        for n in [1001, 20_000] {
            for (name, constraint) in everything(way, n, max_bytes) {
                if constraint.source().len() > max_bytes {
                    continue;
                }
                let refused = check_ends(&compiler, &name, &constraint).expect_err(&name);
                let is_counted = matches!(
                    refused,
                    ConstraintError::TooLong { .. }
                        | ConstraintError::TooDeep { .. }
                        | ConstraintError::Tool { .. }
                );
                assert!(is_counted, "{name}: {refused}");
            }
        }
    }
}

#[test]
fn references_within_the_limits_overflow_nothing() {
    let compiler = ConstraintCompiler::new(&bytes_tokenizer()).unwrap();
    let check = |n: usize, (name, constraint): &(String, Constraint)| {
        // Other tests check whether it can be enforced.
        let compiled = check_ends(&compiler, name, constraint);
        assert!(
            n > 2 || !matches!(compiled, Err(ConstraintError::TooLong { .. })),
            "{name}"
        );
    };
    // The shortest, and for the longest the first body in each form of a request: the deepest recursion.
    let mut others = Vec::new();
    for way in WAYS {
        for form in everything(way, 2, usize::MAX) {
            check(2, &form);
        }
        others.extend(everything(way, 40, usize::MAX).into_iter().map(|form| (40, form)));
        let mut forms = BTreeSet::new();
        for (name, constraint) in everything(way, 990, usize::MAX) {
            let is_first = forms.insert(name.split(',').next().map(str::to_owned));
            let form = (name, constraint);
            if is_first {
                check(990, &form);
            } else {
                others.push((990, form));
            }
        }
    }
    for case in cases("references within the limits", others.len()) {
        let (n, form) = &others[case];
        check(*n, form);
    }
}

#[test]
fn what_was_refused_is_not_compiled_on() {
    let compiler = patient_compiler();
    let of =
        |keyword: &str, value: Value| Constraint::json_schema(json!({"type": "integer", keyword: value}));
    let properties = |n: usize| {
        let named = (0..n).map(|idx| (format!("p{idx}"), json!({"type": "string"})));
        Constraint::json_schema(json!({"type": "object", "properties": named.collect::<Map<_, _>>()}))
    };
    let patterns = (0..3000).map(|idx| {
        (
            format!("p{idx}"),
            json!({"type": "string", "pattern": format!("^{idx}[a-z]{{3}}$")}),
        )
    });
    let alternatives = |n: usize| {
        (0..n)
            .map(|idx| format!("\"{idx}x\""))
            .collect::<Vec<_>>()
            .join(" | ")
    };
    let words = |n: usize| (0..n).map(|idx| format!("w{idx}w")).collect::<Vec<_>>();
    for (name, constraint) in [
        ("a long multiple", of("multipleOf", json!(4_999_999))),
        ("a multiple within the limit", of("multipleOf", json!(9973))),
        (
            "two multiples",
            Constraint::json_schema(json!({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]})),
        ),
        (
            "alternatives",
            Constraint::gbnf(format!("root ::= {}", alternatives(80_000))),
        ),
        (
            "recursive alternatives",
            Constraint::gbnf(format!("root ::= \"(\" root \")\" | {}", alternatives(40_000))),
        ),
        (
            "rules of Lark",
            Constraint::lark(format!("start: {}", alternatives(60_000))),
        ),
        ("properties", properties(10_000)),
        (
            "patterns",
            Constraint::json_schema(json!({"type": "object", "properties": patterns.collect::<Map<_, _>>()})),
        ),
        ("a list", Constraint::choice(words(80_000))),
        ("an enum", Constraint::json_schema(json!({"enum": words(60_000)}))),
        (
            "values and formats",
            Constraint::json_schema(
                json!({"allOf": [{"type": "string", "format": "email"}, {"enum": words(20_000)}]}),
            ),
        ),
        ("counts", Constraint::regex("((a{1,100}){1,100}){1,100}")),
        (
            "a long item",
            Constraint::json_schema(
                json!({"type": "array", "minItems": 100_000, "items": {"type": "string"}}),
            ),
        ),
        (
            "a long text",
            Constraint::json_schema(json!({"type": "string", "minLength": 1_000_000})),
        ),
    ] {
        let compiled = check_ends(&compiler, name, &constraint);
        let is_counted = ["a long multiple", "two multiples", "alternatives", "properties"].contains(&name);
        assert!(
            !is_counted || matches!(compiled, Err(ConstraintError::Refused { .. })),
            "{name}: {compiled:?}"
        );
    }
}

/// Makes a constraint whose cost is in its numbers, not in its references.
fn costly(random: &mut Random, depth: usize) -> Value {
    let n = 1_u64 << random.below(18);
    let small = 1 + random.below(40);
    let inner = |random: &mut Random| match depth {
        0 => json!({"type": "string"}),
        _ => costly(random, depth - 1),
    };
    let many = |n: u64, value: &dyn Fn(u64) -> Value| -> Value { (0..n.min(20_000)).map(value).collect() };
    let fields = |n: u64, value: &dyn Fn(u64) -> Value| -> Value {
        let fields = (0..n.min(5000)).map(|idx| (format!("p{idx}"), value(idx)));
        Value::Object(fields.collect())
    };
    match random.below(16) {
        0 => json!({"type": "integer", "multipleOf": 1 + random.below(20_000)}),
        1 => json!({"type": "number", "multipleOf": 1.0 / n as f64}),
        2 => json!({"type": "integer", "minimum": -(n as i64) * 37, "maximum": n * n}),
        3 => json!({"type": "string", "minLength": n, "maxLength": 2 * n}),
        4 => {
            json!({"type": "string", "pattern": format!("^(.*{}.{{{small}}})+$", random.pick(&["a", "", "[a-f]"]))})
        }
        5 => json!({"type": "string", "pattern": format!("^((a|b){{1,{n}}}c?){{{small}}}$")}),
        6 => json!({"enum": many(n, &|idx| json!(format!("w{}w", idx.wrapping_mul(0x9E37_79B9))))}),
        7 => {
            let item = inner(random);
            json!({"type": "array", "items": item, "minItems": small, "maxItems": n})
        }
        8 => json!({"type": "array", "prefixItems": many(n.min(2000), &|idx| json!({"const": idx}))}),
        9 => {
            json!({"type": "object", "properties": fields(n, &|idx| json!({"const": idx})), "required": many(n, &|idx| json!(format!("p{idx}")))})
        }
        10 => {
            json!({"type": "object", "patternProperties": {format!("^[a-z]{{1,{small}}}x"): inner(random), "^y.*z$": inner(random)}})
        }
        11 => json!({"anyOf": [inner(random), inner(random), inner(random)]}),
        12 => json!({"allOf": [inner(random), inner(random)]}),
        13 => {
            json!({"oneOf": many(n.min(1000), &|idx| json!({"type": "object", "properties": {"k": {"const": idx}}, "required": ["k"]}))})
        }
        14 => {
            json!({"type": "string", "format": *random.pick(&["date-time", "uri", "uuid", "ipv6", "email"]), "maxLength": small})
        }
        _ => {
            let (first, second) = (inner(random), inner(random));
            json!({"type": "object", "properties": {"a": first, "b": second}, "additionalProperties": inner(random)})
        }
    }
}

/// `TOKENMILL_TEST_SECONDS` and `TOKENMILL_TEST_SEED` try more.
#[test]
fn whatever_a_shape_costs_its_work_ends_soon() {
    let compiler = ConstraintCompiler::new(&bytes_tokenizer()).unwrap();
    for seed in rounds("costly shapes", 6) {
        let mut random = Random::new(seed);
        let depth = random.below(4);
        let schema = costly(&mut random, depth);
        let n = 1 + random.below(3000);
        let constraint = match random.below(8) {
            0 => calls_of(
                &[("f", json!({"type": "object", "properties": {"a": schema}}))],
                true,
            ),
            1 => Constraint::lark(format!("start: \"x\" a\na: %json {schema}\n")),
            2 => Constraint::regex(format!("((a|b{{1,{n}}})c?){{1,{}}}", 1 + random.below(100))),
            3 => Constraint::gbnf(format!(
                "root ::= (\"a\" | [b-z]{{1,{n}}} | root \"c\"){{{}}}",
                1 + n % 50
            )),
            _ => Constraint::json_schema(&schema),
        };
        let text = constraint.source();
        let name = format!("seed {seed}: {}", text.chars().take(300).collect::<String>());
        let _ = check_ends(&compiler, &name, &constraint);
    }
}
