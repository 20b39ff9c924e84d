//! Renders damaged chat templates: bytes as they are, and a sound template with words of its language moved about.
//!
//! ```text
//! cd crates/text && mkdir -p fuzz/corpus/chat_template
//! cargo +nightly fuzz run chat_template fuzz/corpus/chat_template -- -max_total_time=600
//! ```
#![no_main]

#[path = "../../../testkit/src/text_mutation.rs"]
mod text_mutation;
#[path = "../../tests/all/support/template_words.rs"]
mod template_words;

use libfuzzer_sys::fuzz_target;
use serde_json::json;
use tokenmill_text::template::{ChatTemplate, RenderOptions};

fuzz_target!(|bytes: &[u8]| {
    render(&String::from_utf8_lossy(bytes));
    let mut source = template_words::TEMPLATE.to_owned();
    for choices in bytes.chunks(8).take(8) {
        text_mutation::mutate_text(&mut source, &template_words::WORDS, &mut text_mutation::choices(choices));
    }
    render(&source);
});

fn render(source: &str) {
    let context = json!({
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>",
    });
    if let Ok(template) = ChatTemplate::new(source) {
        let _ = template.render(&context, &RenderOptions::default());
    }
}
