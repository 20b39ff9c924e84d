//! Asks for JSON that a schema describes: `cargo run --example schema [MODEL]`.

use std::{env, error::Error};

use serde_json::{Value, json};
use tokenmill::{Constraint, Model, TextParams};

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| "demo".to_owned());
    let model = Model::options().context(2048).load(path)?;
    let schema = json!({
        "type": "object",
        "properties": {"sum": {"type": "integer"}, "even": {"type": "boolean"}},
        "required": ["sum", "even"],
        "additionalProperties": false,
    });
    let params = TextParams::new()
        .max_tokens(128)
        .constraint(Constraint::json_schema(schema));
    let answer = model.chat("What is 3 + 4?", &params)?;
    // An answer that ends by itself is valid; one that `max_tokens` ends is cut, and `finish` says so.
    let value: Value = serde_json::from_str(&answer.text)?;
    println!("{value}");
    Ok(())
}
