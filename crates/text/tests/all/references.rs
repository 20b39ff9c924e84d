//! Generates rules of grammars, schemas of answers and tools, macros and values of chat templates that refer to themselves and to
//! each other. Each is compiled or rendered, or refused, in bounded time, and nothing overflows a stack.
//!
//! `TOKENMILL_TEST_SECONDS` and `TOKENMILL_TEST_SEED` try more.

use std::{
    fmt::Write as _,
    fs,
    time::{Duration, Instant},
};

use serde_json::json;
use tokenmill_testkit::{Random, rounds};
use tokenmill_text::template::{ChatTemplate, RenderOptions};

use crate::support::references::{COMPILER, constraint_of};

/// Most time of an answer. A compilation has less than a second of CPU time, and ten seconds on a busy machine.
const LONGEST_WAIT: Duration = Duration::from_mins(1);

/// Most CPU time of a rendering, or of making a constraint of tools, in a build without optimisation.
const MAX_WORK: Duration = Duration::from_secs(15);

/// Returns the CPU time of this thread, if the system counts it.
fn cpu_time() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

#[test]
fn rules_and_schemas_that_refer_to_each_other_are_answered_in_time() {
    for seed in rounds("references of grammars and schemas", 30) {
        let mut random = Random::new(seed);
        let input: Vec<u8> = (0..4 + random.below(200)).map(|_| random.bits() as u8).collect();
        let begun = cpu_time();
        let constraint = constraint_of(&input).expect("there are enough bytes");
        if let Some((begun, ended)) = begun.zip(cpu_time()) {
            let work = ended.saturating_sub(begun);
            assert!(work < MAX_WORK, "seed {seed}: {work:?} before compilation");
        }
        let begun = Instant::now();
        let compiled = COMPILER.compile(&constraint);
        let took = begun.elapsed();
        assert!(took < LONGEST_WAIT, "{took:?}: {:?}", compiled.err());
    }
}

/// Expressions in which `{}` stands for the value before.
const VALUES: [&str; 12] = [
    "{} ~ {}",
    "[{}, {}]",
    "{'a': {}, 'b': {}}",
    "({}, 1)",
    "[{}] * 9",
    "{} | string",
    "{} | tojson",
    "[{}, {}] | join('-')",
    "{} if {} else 1",
    "dict(a={}, b={})",
    "namespace(a={})",
    "[{} == {}, {}]",
];

/// Uses of the last value.
const USES: [&str; 14] = [
    "{}",
    "{} | tojson",
    "{} | tojson(indent=2)",
    "{} | string | length",
    "{} == {}",
    "{} in [{}]",
    "[{}, {}] | unique | list",
    "[{}, {}] | sort",
    "{} | pprint",
    "{} | length",
    "{} | list",
    "{} | join(',')",
    "[{}] | map('string') | list",
    "{} | groupby('a') | list",
];

/// Bodies of macros, in which `{}` stands for another macro.
const MACROS: [&str; 7] = [
    "{{ {}(x) }}",
    "{{ {}(x) ~ {}(x) }}",
    "{{ {}([x, x]) }}",
    "{% for i in range(9) %}{{ {}(i) }}{% endfor %}",
    "{% if x %}{{ {}(x) }}{% endif %}",
    "{% call {}(x) %}a{% endcall %}",
    "{% set x = {}(x) %}{{ x }}",
];

/// Chooses another of `n`: mostly the next, sometimes any.
fn target(random: &mut Random, idx: usize, n: usize) -> usize {
    match random.below(10) {
        0 => random.below(n),
        step => (idx + 1 + step % 2).min(n - 1),
    }
}

fn template(random: &mut Random) -> String {
    let most = *random.pick(&[4, 40, 400]);
    let n = 1 + random.below(most);
    let mut text = String::new();
    match random.below(5) {
        0 => {
            for idx in 0..n {
                let to = format!("m{}", target(random, idx, n));
                let body = random.pick(&MACROS).replace("{}", &to);
                writeln!(text, "{{% macro m{idx}(x) %}}{body}{{% endmacro %}}").unwrap();
            }
            text += "{{ m0(1) }}";
        }
        1 => {
            text += "{% set v0 = messages %}";
            for idx in 1..=n {
                let before = match random.below(8) {
                    0 => format!("v{}", random.below(idx)),
                    _ => format!("v{}", idx - 1),
                };
                let value = random.pick(&VALUES).replace("{}", &before);
                writeln!(text, "{{% set v{idx} = {value} %}}").unwrap();
            }
            let used = random.pick(&USES).replace("{}", &format!("v{n}"));
            write!(text, "{{{{ {used} }}}}").unwrap();
        }
        2 => {
            // Namespaces that hold each other.
            for idx in 0..n {
                write!(text, "{{% set s{idx} = namespace(a=1) %}}").unwrap();
            }
            for idx in 0..n {
                let other = format!("s{}", target(random, idx, n));
                let value = random
                    .pick(&["{}", "[{}]", "{'k': {}}", "({}, {})"])
                    .replace("{}", &other);
                write!(text, "{{% set s{idx}.a = {value} %}}").unwrap();
            }
            let used = random.pick(&USES).replace("{}", "s0");
            write!(text, "{{{{ {used} }}}}{{{{ s0.a | string }}}}").unwrap();
        }
        3 => {
            let depth = n.min(60);
            for idx in 0..depth {
                let of = random.pick(&["range(99999)", "messages", "'abc'", "range(3)"]);
                write!(text, "{{% for i{idx} in {of} %}}").unwrap();
            }
            text += *random.pick(&["x", "{{ loop.index }}", "", "{% if i0 is odd %}y{% endif %}"]);
            text += &"{% endfor %}".repeat(depth);
        }
        _ => {
            let wrapped = random.pick(&[
                "({})",
                "[{}]",
                "not {}",
                "-{}",
                "{} | upper",
                "{} + 1",
                "{}[0]",
                "{}.a",
                "{} and 1",
            ]);
            let mut expression = "1".to_owned();
            for _ in 0..n {
                expression = wrapped.replace("{}", &expression);
            }
            write!(text, "{{{{ {expression} }}}}").unwrap();
        }
    }
    text
}

#[test]
fn templates_whose_parts_refer_to_each_other_are_rendered_or_refused_in_time() {
    let context = json!({
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a"}],
        "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>",
    });
    let (mut n_rendered, mut n_refused) = (0, 0);
    for seed in rounds("references of templates", 16) {
        let source = template(&mut Random::new(seed));
        let begun = cpu_time();
        let rendered = ChatTemplate::new(&source)
            .and_then(|template| template.render(&context, &RenderOptions::default()));
        if let Some((begun, ended)) = begun.zip(cpu_time()) {
            let work = ended.saturating_sub(begun);
            assert!(work < MAX_WORK, "{work:?}: {source}");
        }
        match rendered {
            Ok(text) => {
                assert!(text.len() <= 64 << 20, "{} bytes: {source}", text.len());
                n_rendered += 1;
            }
            Err(error) => {
                assert!(error.to_string().len() < 4096, "{source}");
                n_refused += 1;
            }
        }
    }
    assert!(
        n_rendered > 0 && n_refused > 0,
        "{n_rendered} rendered, {n_refused} refused"
    );
}
