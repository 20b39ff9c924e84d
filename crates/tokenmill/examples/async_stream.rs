//! Answers two questions side by side on one thread: `cargo run --example async_stream [MODEL]`.
//!
//! Any runtime works; this one is tokio's. The engine computes on its own threads.

use std::{env, error::Error};

use futures_util::StreamExt;
use tokenmill::prelude::*;

/// Streams the answer to a question and returns the whole text.
async fn answer(model: &Model, question: &str) -> Result<String, tokenmill::Error> {
    let params = TextParams::new().max_tokens(64);
    let mut stream = model.chat_stream_async(question, &params).await?;
    let mut text = String::new();
    while let Some(piece) = stream.next().await {
        text.push_str(&piece?.text);
    }
    Ok(text)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| "demo".to_owned());
    // Loading takes a while. A program with other tasks loads on a separate thread, such as `spawn_blocking`'s.
    let model = Model::options().context(2048).load(path)?;
    let questions = ["What is 3 + 4?", "What is 2 + 2?"];
    // `Model::chat_async` returns a whole answer instead.
    let (first, second) = tokio::join!(answer(&model, questions[0]), answer(&model, questions[1]));
    println!("{} {}", questions[0], first?);
    println!("{} {}", questions[1], second?);
    Ok(())
}
