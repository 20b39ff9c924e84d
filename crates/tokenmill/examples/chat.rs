//! Holds a conversation: `cargo run --example chat [MODEL] < questions.txt`, one question a line.

use std::{
    env,
    error::Error,
    io::{Write, stdin, stdout},
};

use tokenmill::{Message, Model, TextParams};

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| "demo".to_owned());
    let model = Model::options().context(2048).load(path)?;
    let params = TextParams::new().max_tokens(64);
    let mut messages = Vec::new();
    for line in stdin().lines() {
        let question = line?;
        println!("> {question}");
        messages.push(Message::user(question));
        // The prefix cache has the earlier part of the conversation, so it is not computed again.
        let answers = model.chat_stream(&messages, &params)?.read(|piece| {
            print!("{}", piece.text);
            Ok::<(), Box<dyn Error>>(stdout().flush()?)
        })?;
        println!();
        messages.push(Message::assistant(answers[0].text.as_str()));
    }
    Ok(())
}
