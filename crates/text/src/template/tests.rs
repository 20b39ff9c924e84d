//! Claims about the whole template engine. Expected texts of the first table were printed by Jinja 3.1.6 in the
//! environment of transformers; golden renderings of real templates are in `tests/all/chat_template_goldens.rs`.

mod rare_built_ins;

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::{ChatTemplate, RenderLimits, RenderOptions, TemplateError, TemplateLimit};

fn context() -> Json {
    json!({"d": {"a": 1, "b": [1, 2, null, true, 1.5, "x\"'y"]}, "s": "héllo", "l": [3, 1, 2], "n": null})
}

fn render(source: &str) -> Result<String, TemplateError> {
    ChatTemplate::new(source)?.render(&context(), &RenderOptions::default())
}

#[test]
fn expressions_mean_what_they_mean_in_python() {
    for (source, expected) in [
        (
            "{{ d }} {{ (1,) }} {{ 1e16 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** -1 }}",
            r#"{'a': 1, 'b': [1, 2, None, True, 1.5, 'x"\'y']} (1,) 1e+16 -4 2 3.5 0.5"#,
        ),
        (
            "{{ true + 1 }} {{ [1]+[2] }} {{ 'a'*3 }} {{ 'a' ~ n ~ u ~ 1.0 ~ true }}",
            "2 [1, 2] aaa aNone1.0True",
        ),
        (
            "{{ 1 < 2 < 3 }}{{ not 1 in [1] }}{{ -1|abs }}{{ 1 is not none }}{{ 4 is divisibleby 2 }}",
            "TrueFalse1TrueTrue",
        ),
        (
            "{{ [] == () }}{{ 1 == 1.0 }}{{ true == 1 }}{{ '1' == 1 }}{{ u == w }}{{ u == none }}",
            "FalseTrueTrueFalseTrueFalse",
        ),
        (
            "{{ s[::-1] }}{{ s[1:3] }}{{ l[::-1] }}{{ l[5:] }}{{ s[-2:] }}{{ d.b[-1] }}{{ l.0 }}",
            "olléhél[2, 1, 3][]lox\"'y3",
        ),
        (
            "{{ u is iterable }}{{ u is sequence }}{{ 's' is sequence }}{{ d is sequence }}{{ u|length }}",
            "TrueTrueTrueTrue0",
        ),
        (
            "{{ ('<'|safe) + '<' }}{{ ('<'|safe) ~ '<' }}{{ '<a>'|e }}",
            "<&lt;<<&lt;a&gt;",
        ),
        (
            "{{ d.items()|list|length }}{{ ('a',1) in d.items() }}{{ d.keys()|list }}{{ d|dictsort|first }}",
            "2True['a', 'b']('a', 1)",
        ),
        (
            "{{ '%s-%d-%5.2f' % ('a', 3, 2.5) }}{{ '{} {x}'.format(1, x=2) }}{{ '%-5s|' % 'a' }}",
            "a-3- 2.501 2a    |",
        ),
        (
            "{{ '{:>5}|{:05d}|{:.2f}|{:,}'.format('a',3,1.234,1000000) }}{{ '%g %e' % (0.0001, 12345.678) }}",
            "    a|00003|1.23|1,000,0000.0001 1.234568e+04",
        ),
        (
            "{{ l|sort }}{{ l|sort(reverse=true) }}{{ l|min }}{{ l|batch(2)|list }}{{ [d]|groupby('a')|length }}",
            "[1, 2, 3][3, 2, 1]1[[3, 1], [2]]1",
        ),
        (
            "{{ 'a\\nb\\n\\nc'|indent(2, true) }}{{ ''|default('y', true) }}{{ 'abc def'|title }}",
            "  a\n  b\n\n  cyAbc Def",
        ),
        (
            "{{ d|tojson }}{{ l|tojson(separators=(',', ':')) }}{{ {1:2,none:'é'}|tojson(ensure_ascii=true) }}",
            r#"{"a": 1, "b": [1, 2, null, true, 1.5, "x\"'y"]}[3,1,2]{"1": 2, "null": "\u00e9"}"#,
        ),
        (
            "{{ {'a': [], 'b': [1]}|tojson(indent=2) }}",
            "{\n  \"a\": [],\n  \"b\": [\n    1\n  ]\n}",
        ),
        (
            "{{ ' a  b '.split() }}{{ 'a,b,c'.rsplit(',', 1) }}{{ 'abc'.strip('ac') }}{{ 'a\\r\\nb\\n'.splitlines() }}",
            "['a', 'b']['a,b', 'c']b['a', 'b']",
        ),
        (
            "{{ '12'.center(11, '*') }}{{ '-7'.zfill(4) }}{{ \"they're\".title() }}{{ 'aXbX'.replace('X', '-', 1) }}",
            "*****12****-007They'Rea-bX",
        ),
        (
            "{{ - 2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ 7 % 4 * 2 }} {{ 1 if 0 else 3 if 0 else 5 }}",
            "4 64 6 5",
        ),
    ] {
        assert_eq!(render(source).as_deref(), Ok(expected), "{source}");
    }
}

#[test]
fn scopes_loops_and_macros_follow_jinja() {
    for (source, expected) in [
        (
            "{% set x=0 %}{% for i in [1,2,3] %}{% set x = x+1 %}{{x}}{% endfor %}{{x}}",
            "1110",
        ),
        (
            "{% set x=1 %}{% macro m() %}{{x}}{% endmacro %}{% set x=2 %}{{m()}}",
            "2",
        ),
        (
            "{% macro m() %}{{x}}{% endmacro %}{% for x in [1] %}{{m()}}{% endfor %}",
            "",
        ),
        (
            "{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
            "7",
        ),
        (
            "{% for i in [1,2,3] if i > 1 %}{{ loop.index }}/{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }} {% else %}no{% endfor %}",
            "1/23 2/22 ",
        ),
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        (
            "{% for x in [[1, [2]], 3] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{{ loop.depth }}{% endif %}{% endfor %}",
            "(12(23))31",
        ),
        (
            "{% macro m(a, b=2) %}{{a}}{{b}}{{varargs}}{{kwargs}}{% endmacro %}{{ m(1, 2, 3, k=4) }}{{ m() }}",
            "12(3,){'k': 4}2(){}",
        ),
        (
            "{% macro m(a) %}{{ caller(1) }}{% endmacro %}{% call(x) m(1) %}[{{x}}]{% endcall %}",
            "[1]",
        ),
        (
            "{% set x %}a{{ 1 }}{% endset %}{{ x }}{% set x | upper %}abc{% endset %}{{ x }}{% filter upper %}x{% endfilter %}",
            "a1ABCX",
        ),
        (
            "{% generation %}{% set y = 1 %}{{ y }}{% endgeneration %}{{ y }}",
            "1",
        ),
        (
            "{% with a=1, b=a %}{{ a }}{{ b }}{% endwith %}{% set a, b = 1, 2 %}{{ a }}{{ b }}",
            "112",
        ),
    ] {
        assert_eq!(render(source).as_deref(), Ok(expected), "{source}");
    }
}

#[test]
fn errors_say_what_is_wrong_and_where() {
    for (source, expected) in [
        ("\n{{ foo.bar }}", "chat template, line 2: 'foo' is undefined"),
        (
            "{{ d.zz.y }}",
            "chat template, line 1: 'dict object' has no attribute 'zz'",
        ),
        (
            "{{ 'a' + 1 }}",
            "chat template, line 1: can only concatenate str (not \"int\") to str",
        ),
        (
            "{{ l.append(1) }}",
            "chat template, line 1: 'list object' has no attribute 'append'",
        ),
        (
            "{{ s|nofilter }}",
            "chat template, line 1: No filter named 'nofilter'",
        ),
        (
            "{% if x %}\n",
            "chat template, line 1: expected `{% endif %}`, found the end of the template",
        ),
        (
            "{% include 'x' %}",
            "chat template, line 1: `include` needs other templates, which a chat template has not",
        ),
        (
            "{{ raise_exception('No ' ~ s) }}",
            "the chat template refused the conversation: No héllo",
        ),
    ] {
        assert_eq!(render(source).unwrap_err().to_string(), expected, "{source}");
    }
}

#[test]
fn growth_without_end_stops_at_a_limit() {
    let options = RenderOptions {
        limits: RenderLimits {
            fuel: 2_000_000,
            memory_bytes: 8 << 20,
            output_bytes: 1 << 20,
        },
        ..RenderOptions::default()
    };
    for source in [
        "{% set ns = namespace(x='ab') %}{% for i in range(99999) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == [ns.x] or ns.x|string }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ s * 99 }}{% endfor %}",
        "{{ 'a' * 99999999999999999999 }}",
        "{{ 'a'.ljust(99999999999) }}",
        "{{ '%99999999999d' % 1 }}{{ '{:99999999999}'.format(1) }}",
        "{{ ('a' * 99999).replace('', 'b' * 99999) }}",
        "{{ l|tojson(indent=99999999999) }}",
        "{{ 'a'|indent(99999999999) }}",
        "{% set x = [1] * 50000 %}{% for i in range(9999) %}{% set y = x == x %}{% endfor %}",
    ] {
        let template = ChatTemplate::new(source).unwrap();
        let error = template.render(&context(), &options).unwrap_err();
        assert!(
            matches!(error, TemplateError::LimitExceeded { .. }),
            "{source}: {error}"
        );
    }
}

#[test]
fn deepest_nesting_fits_a_small_stack() {
    let sources = [
        format!("{{{{ {}1{} }}}}", "[".repeat(30_000), "]".repeat(30_000)),
        format!("{{{{ {}1{} }}}}", "[".repeat(39), "]".repeat(39)),
        format!("{{{{ {}1 }}}}", "not ".repeat(30_000)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(30_000)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(150)),
        format!("{{{{ 1{} }}}}", "|abs".repeat(30_000)),
        format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(30_000)),
        "{% if 1 %}".repeat(30_000),
        "{% if 1 %}".repeat(47) + &"{% endif %}".repeat(47),
        "{% for (".to_owned() + &"(".repeat(30_000),
        format!(
            "{{% macro m(n) %}}{{% if n %}}{{{{ {}m(n - 1){} }}}}{{% endif %}}{{% endmacro %}}{{{{ m(999) }}}}",
            "[".repeat(30),
            "]".repeat(30)
        ),
    ];
    let run = move || {
        for source in sources {
            let context = json!({});
            let _result = ChatTemplate::new(&source).map(|it| it.render(&context, &RenderOptions::default()));
        }
    };
    let thread = std::thread::Builder::new()
        .stack_size(1 << 20)
        .spawn(run)
        .unwrap();
    thread.join().unwrap();
}

#[test]
fn a_context_nested_too_deep_is_refused() {
    let mut context = json!(1);
    for _ in 0..150 {
        context = json!([context]);
    }
    let template = ChatTemplate::new("{{ x }}").unwrap();
    let error = template
        .render(&json!({"x": context}), &RenderOptions::default())
        .unwrap_err();
    assert!(matches!(
        error,
        TemplateError::LimitExceeded {
            limit: TemplateLimit::Nesting(_),
            ..
        }
    ));
}

/// Pieces that random templates are made of.
const PIECES: [&str; 92] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    "{%-",
    "-%}",
    "{{-",
    "-}}",
    " for x in ",
    " if ",
    " else ",
    " elif ",
    " endif ",
    " endfor ",
    " set ",
    " endset ",
    " macro ",
    " endmacro ",
    " call ",
    " endcall ",
    " filter ",
    " endfilter ",
    " raw ",
    " endraw ",
    " with ",
    " endwith ",
    " break ",
    " continue ",
    " generation ",
    " recursive ",
    " in ",
    " is ",
    " not ",
    " and ",
    " or ",
    "d",
    "s",
    "l",
    "n",
    "u",
    "x",
    "loop",
    "caller",
    "namespace()",
    "range(99999)",
    "ns",
    "ns.x",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    ".",
    "|",
    "=",
    "==",
    "<",
    "+",
    "-",
    "*",
    "**",
    "/",
    "//",
    "%",
    "~",
    "1",
    "0",
    "-1",
    "1e308",
    "99999999999999999999",
    "'a'",
    "'%s{}'",
    "\"é\"",
    "true",
    "none",
    ".items()",
    ".split('l')",
    "|tojson",
    "|length",
    "|join(s)",
    "|sort",
    "|map('upper')",
    "|list",
    ".format(s)",
    ".replace('', s)",
    "[::-1]",
    " \n",
];

fn any_template() -> impl Strategy<Value = String> {
    let pieces =
        prop::collection::vec(prop::sample::select(&PIECES[..]), 0..30).prop_map(|pieces| pieces.concat());
    // Inside a print tag, so that most of them parse.
    let operand = prop::sample::select(vec![
        "d", "s", "l", "n", "u", "'%5s'", "range(9)", "-3", "2.5", "[s, l]", "{s: d}",
    ]);
    let operation = prop::sample::select(vec![
        "|sort",
        "|tojson(indent=l)",
        "|join(s)",
        "|list",
        "|indent(9)",
        "|round(2)",
        "|groupby(0)",
        "|batch(0)",
        "|slice(3)|list",
        "|truncate(2)",
        "|center(99)",
        "|int(base=99)",
        "|sum",
        "|min",
        "|dictsort",
        "|unique|list",
        "|replace('', s)",
        "|map(attribute='a.0')|list",
        "|select('lt', 2)|list",
        "|default(s)",
        ".split(none, 1)",
        ".rsplit()",
        "[1:-1:2]",
        "[::-3]",
        "[-1]",
        ".get(s)",
        ".format(s, l)",
        " % l",
        " * 3",
        " + s",
        " // 0",
        " ** 99",
        " is divisibleby 0",
        " in s",
        ".partition(s)",
        ".splitlines(true)",
        ".zfill(9)",
        ".title()",
        ".count('')",
        ".find('')",
        "(1)",
        "|attr('a')",
        "|items|list",
        "|reverse|list",
        "|wordcount",
        "|urlencode",
        "|float",
    ]);
    let chain = (operand, prop::collection::vec(operation, 0..6))
        .prop_map(|(operand, operations)| format!("{{{{ ({operand}){} }}}}", operations.concat()));
    prop_oneof![pieces, chain]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_template_panics_hangs_or_grows_without_end(source in any_template()) {
        let limits = RenderLimits { fuel: 200_000, memory_bytes: 4 << 20, output_bytes: 1 << 20 };
        let options = RenderOptions { limits, ..RenderOptions::default() };
        if let Ok(template) = ChatTemplate::new(&source)
            && let Ok(text) = template.render(&context(), &options)
        {
            prop_assert!(text.len() <= limits.output_bytes);
        }
    }

    #[test]
    fn text_outside_tags_is_printed_as_it_is(text in "[^{}\r]*") {
        let expected = text.strip_suffix('\n').unwrap_or(&text);
        prop_assert_eq!(render(&text).unwrap(), expected);
    }

    #[test]
    fn json_reads_back_as_what_was_written(text in ".*", number in any::<i64>()) {
        let value = json!({"t": text, "l": [number, null, true, {}]});
        let template = ChatTemplate::new("{{ x|tojson }}").unwrap();
        let written = template.render(&json!({"x": value}), &RenderOptions::default()).unwrap();
        prop_assert_eq!(serde_json::from_str::<Json>(&written).unwrap(), value);
    }

    #[test]
    fn floats_read_back_as_what_was_written(number in any::<f64>().prop_filter("finite", |number| number.is_finite())) {
        let template = ChatTemplate::new("{{ x }}").unwrap();
        let written = template.render(&json!({"x": number}), &RenderOptions::default()).unwrap();
        prop_assert_eq!(written.parse::<f64>().unwrap(), number);
    }
}
