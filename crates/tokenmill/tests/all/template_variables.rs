//! Tests the variables of a chat template: the date, whether the model reasons, and the model's settings.

use serde_json::json;
use tokenmill::{
    Conversation, Device, Message, Model,
    text::{ModelWords, utc_now},
};

const TEMPLATE: &str = "{{ enable_thinking is defined and enable_thinking }}|{{ date_string }}|{{ datetime }}|{{ tone | default('none') }}";

fn rendered(words: &ModelWords, conversation: &Conversation) -> String {
    words.render_chat(conversation).unwrap()
}

#[test]
fn a_template_is_told_the_date_and_to_reason() {
    let options = Model::options().context(64).threads(1).device(Device::Cpu);
    let options = options.chat_template(TEMPLATE);
    let hello = Conversation::new([Message::user("Hi")]);
    let today = || {
        let now = utc_now();
        format!("{}|{}", now.day_month_year(), now.month_day_year())
    };
    let model = options.clone().load("demo").unwrap();
    // The day may change between the calls.
    let (before, found, after) = (today(), rendered(model.words(), &hello), today());
    let expected = [before, after].map(|date| format!("True|{date}|none"));
    assert!(expected.contains(&found), "{found}");
    let quiet = options
        .template_variable("enable_thinking", false)
        .template_variable("tone", "dry");
    let model = quiet.load("demo").unwrap();
    let found = rendered(model.words(), &hello);
    assert!(found.starts_with("False|") && found.ends_with("|dry"), "{found}");
    // A conversation's variables override the model's.
    let asked = hello
        .variable("enable_thinking", true)
        .variable("date_string", json!("today"));
    let found = rendered(model.words(), &asked);
    assert!(
        found.starts_with("True|today|") && found.ends_with("|dry"),
        "{found}"
    );
}
