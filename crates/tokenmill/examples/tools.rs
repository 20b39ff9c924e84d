//! Lets the model call a tool and answer from its result: `cargo run --example tools [MODEL]`.

use std::{env, error::Error};

use serde_json::{Value, json};
use tokenmill::{Conversation, Model, TextParams};

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| "demo".to_owned());
    let model = Model::options().context(2048).load(path)?;
    let number = json!({"type": "number"});
    let add = json!({
        "name": "add_numbers",
        "description": "Adds two numbers",
        "parameters": {"type": "object", "properties": {"x": number, "y": number}, "required": ["x", "y"]},
    });
    let mut conversation =
        Conversation::from("What is 3 + 4?").tools(json!([{"type": "function", "function": add}]));

    let params = TextParams::new().max_tokens(128);
    let mut answer = model.chat(&conversation, &params)?;
    conversation = conversation.answer(&answer);
    for call in &answer.calls {
        let arguments: Value = serde_json::from_str(&call.arguments)?;
        let sum = arguments["x"].as_f64().unwrap_or(0.0) + arguments["y"].as_f64().unwrap_or(0.0);
        println!("{}({}) = {sum}", call.name, call.arguments);
        conversation = conversation.result(call, sum.to_string());
    }
    if !answer.calls.is_empty() {
        answer = model.chat(&conversation, &params)?;
    }
    println!("{}", answer.text);
    Ok(())
}
