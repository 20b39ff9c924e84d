//! Reads damaged lines of batch files: bytes as they are, and a sound line with its structure changed. A line that is taken
//! has a body that is JSON, and its id counts.
//!
//! ```text
//! cd crates/cli && mkdir -p fuzz/corpus/batch_line
//! cargo +nightly fuzz run batch_line fuzz/corpus/batch_line -- -max_total_time=600
//! ```
#![no_main]

#[path = "../../../testkit/src/json_mutation.rs"]
mod json_mutation;
#[path = "../../src/commands/batch/line.rs"]
mod line;
#[path = "../../../testkit/src/text_mutation.rs"]
#[expect(dead_code, reason = "no text is mutated here")]
mod text_mutation;

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

fuzz_target!(|bytes: &[u8]| {
    let mut ids = HashSet::new();
    for text in bytes.split(|&byte| byte == b'\n') {
        check(text, &mut ids);
    }
    let mut request = json!({
        "custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "stream": false},
    });
    let parts = [json!("/v1/responses"), json!({"stream": true}), json!("POST")];
    for choices in bytes.chunks(8).take(8) {
        json_mutation::mutate_json(&mut request, &parts, &mut text_mutation::choices(choices));
    }
    check(request.to_string().as_bytes(), &mut ids);
});

fn check(text: &[u8], ids: &mut HashSet<String>) {
    if let Ok(request) = line::BatchRequest::parse(text, ids) {
        assert!(ids.contains(&request.custom_id));
        assert!(request.url.starts_with("/v1/"));
        assert!(matches!(serde_json::from_str(&request.body), Ok(Value::Object(_))));
    }
}
