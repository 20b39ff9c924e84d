//! The facts that references are read and compared by: configurations, checksums and functions.

use tokenmill_testkit::{crc32, end_tokens, erf, png_header};

#[test]
fn the_tokens_that_end_an_answer_are_those_of_the_network_that_writes() {
    for (json, expected) in [
        (r#"{"vocab_size": 8}"#, vec![]),
        (r#"{"eos_token_id": null}"#, vec![]),
        (r#"{"eos_token_id": 5}"#, vec![5]),
        (r#"{"eos_token_id": [5, 7]}"#, vec![5, 7]),
        (
            r#"{"eos_token_id": 5, "text_config": {"eos_token_id": 6}}"#,
            vec![6],
        ),
        (r#"{"eos_token_id": 5, "text_config": {}}"#, vec![5]),
    ] {
        assert_eq!(end_tokens(json.as_bytes()).unwrap(), expected, "{json}");
    }
}

#[test]
fn the_end_of_every_png_has_this_checksum() {
    assert_eq!(crc32(b"IEND"), 0xae42_6082);
    assert!(png_header(1, 1).ends_with(&[0xae, 0x42, 0x60, 0x82]));
}

#[test]
fn erf_agrees_with_tables() {
    // Source: Abramowitz and Stegun, table 7.1.
    for (x, expected) in [
        (0.0, 0.0),
        (0.5, 0.520_499_877_8),
        (1.0, 0.842_700_792_9),
        (2.0, 0.995_322_265_0),
        (-1.0, -0.842_700_792_9),
        (4.5, 0.999_999_999_8),
    ] {
        assert!((erf(x) - expected).abs() < 1e-9, "erf({x}) = {}", erf(x));
    }
}
