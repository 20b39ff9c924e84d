//! Tests Jinja built-ins that chat templates hardly use. Expected texts were printed by Jinja 3.1.6 in the environment of transformers.

use super::{ChatTemplate, RenderOptions, TemplateError, json, render};

#[test]
fn rare_built_ins_do_what_they_do_in_jinja() {
    for (source, expected) in [
        (
            r#"{% set j = joiner(", ") %}{% for x in [1,2,3] %}{{ j() }}{{ x }}{% endfor %}"#,
            "1, 2, 3",
        ),
        ("{% set j = joiner() %}{{ j() }}-{{ j() }}-{{ j() }}", "-, -, "),
        (
            r#"{% set c = cycler("a","b") %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.reset() }}{{ c.next() }}"#,
            "abaaNonea",
        ),
        (r#"{{ "a b c d"|wordwrap(3) }}"#, "a b\nc d"),
        (r#"{{ "abcdefgh ij"|wordwrap(3) }}"#, "abc\ndef\ngh\nij"),
        (r#"{{ "abcdefgh ij"|wordwrap(3, false) }}"#, "abcdefgh\nij"),
        (r#"{{ "well-known words"|wordwrap(6) }}"#, "well-\nknown\nwords"),
        (r#"{{ "<b>x</b> &amp; <!-- c -->  y"|striptags }}"#, "x & y"),
        (
            r#"{{ {"b": [1, "x"], "a": none}|pprint }}"#,
            "{'a': None, 'b': [1, 'x']}",
        ),
        (
            "{{ 1|filesizeformat }} {{ 999|filesizeformat }} {{ 1500|filesizeformat }}",
            "1 Byte 999 Bytes 1.5 kB",
        ),
        (
            "{{ 1048576|filesizeformat(true) }} {{ 13000000|filesizeformat }}",
            "1.0 MiB 13.0 MB",
        ),
        (
            "a{% block x %}b{% endblock %}c{% block y scoped %}d{% endblock y %}",
            "abcd",
        ),
        (
            "{% autoescape false %}<a>{{ '<b>' }}{% endautoescape %}",
            "<a><b>",
        ),
        (
            r#"<p{{ {"a": 1, "b": none, "c": "<"}|xmlattr }}>"#,
            r#"<p a="1" c="&lt;">"#,
        ),
        (
            "{{ undefined_thing is callable }}{{ 1 is callable }}",
            "TrueFalse",
        ),
    ] {
        assert_eq!(render(source).as_deref(), Ok(expected), "{source}");
    }
    for source in [
        "{% autoescape true %}{% endautoescape %}",
        "{{ namespace()() }}",
        "{{ cycler() }}",
    ] {
        assert!(render(source).is_err(), "{source}");
    }
}

#[test]
fn an_order_of_roles_that_a_template_refuses_can_be_written() {
    let template =
        ChatTemplate::new("a{{ raise_exception('Conversation roles must alternate user/assistant') }}b")
            .unwrap();
    let strict = template.render(&json!({}), &RenderOptions::default());
    assert!(matches!(strict, Err(TemplateError::Raised { .. })), "{strict:?}");
    let options = RenderOptions {
        takes_any_turns: true,
        ..RenderOptions::default()
    };
    assert_eq!(template.render(&json!({}), &options).as_deref(), Ok("ab"));
    let other = ChatTemplate::new("{{ raise_exception('No tools') }}").unwrap();
    assert!(
        other.render(&json!({}), &options).is_err(),
        "another refusal stays one"
    );
}

#[test]
fn mappings_print_in_order_of_their_keys_whatever_kinds_these_have() {
    for (source, expected) in [
        (
            "{{ {1: 1, 'a': 2, none: 3, 'B': 4, 0: 5}|pprint }}",
            "{None: 3, 0: 5, 1: 1, 'B': 4, 'a': 2}",
        ),
        (
            "{{ {(2, 'b'): 1, (2, 1): 2, (1,): 3, 'x': 4}|pprint }}",
            "{'x': 4, (1,): 3, (2, 1): 2, (2, 'b'): 1}",
        ),
        (
            "{{ {9007199254740993: 1, 9007199254740992: 2, 0.5: 3}|pprint }}",
            "{0.5: 3, 9007199254740992: 2, 9007199254740993: 1}",
        ),
    ] {
        assert_eq!(render(source).as_deref(), Ok(expected), "{source}");
    }
    // The standard library's sort panics at an inconsistent order, from about twenty items on.
    let mixed = (0..400).map(|n| {
        let number = (n * 7919) % 401;
        match n % 4 {
            0 => format!("{number}: 0"),
            1 => format!("'{number}': 0"),
            2 => format!("{number}.5: 0"),
            _ => format!("({number}, 'a'): 0"),
        }
    });
    let entries: Vec<String> = mixed.collect();
    let source = format!("{{{{ {{{}}}|pprint }}}}", entries.join(", "));
    let printed = render(&source).expect("it is small");
    assert_eq!(printed.lines().count(), 400);
    let tuples = printed.lines().position(|line| line.contains('('));
    assert_eq!(tuples, Some(300), "{printed}");
}

#[test]
fn long_words_and_many_ampersands_take_linear_time() {
    let start = std::time::Instant::now();
    let check = |source: &str, n_chars: usize| {
        assert_eq!(
            render(source).map(|text| text.chars().count()),
            Ok(n_chars),
            "{source}"
        );
    };
    check("{{ ('&' * 400000)|striptags }}", 400_000);
    check("{{ ('&amp' * 50000)|striptags }}", 200_000);
    check("{{ ('a' * 200000)|wordwrap(1) }}", 399_999);
    check("{{ '&#x0001F;&#x01F600;&amp;&toolongs;;'|striptags }}", 14);
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}
