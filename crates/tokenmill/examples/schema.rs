//! Asks for JSON that a schema describes: `cargo run --example schema [MODEL]`.

use std::{env, error::Error};

use serde_json::{Value, json};
use tokenmill::{Constraint, Message, Model, TextParams};

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| "demo".to_owned());
    let model = Model::options().context(2048).load(path)?;
    let schema = json!({
        "type": "object",
        "properties": {"sum": {"type": "integer"}, "even": {"type": "boolean"}},
        "required": ["sum", "even"],
        "additionalProperties": false,
    });
    let params = TextParams {
        max_tokens: Some(128),
        constraint: Some(Constraint::json_schema(schema)),
        ..TextParams::default()
    };
    let answer = model.chat(&[Message::user("What is 3 + 4?")], &params)?;
    // An answer that ends by itself is valid; one that `max_tokens` ends is cut, and `finish` says so.
    let value: Value = serde_json::from_str(&answer.text)?;
    println!("{value}");
    Ok(())
}
