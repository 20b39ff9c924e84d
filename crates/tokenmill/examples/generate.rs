//! Continues a text: `cargo run --example generate [MODEL] [PROMPT]`.

use std::{env, error::Error};

use tokenmill::{Model, TextParams};

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| "demo".to_owned());
    let prompt = env::args()
        .nth(2)
        .unwrap_or_else(|| "Once upon a time".to_owned());
    let model = Model::open(path)?;
    println!("{} computes on {}", model.name(), model.device());

    let params = TextParams::new()
        .max_tokens(48)
        .stop("\n\n")
        .temperature(0.8)
        .top_p(0.95)
        .seed(7);
    let answer = model.complete(&prompt, &params)?;
    println!("{prompt}{}", answer.text);
    println!(
        "[{} tokens read, {} written, ended by {:?}]",
        answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.finish
    );
    Ok(())
}
