//! Shows a text as it comes: `cargo run --example stream [MODEL] [PROMPT]`.

use std::{
    env,
    error::Error,
    io::{Write, stdout},
};

use tokenmill::{Model, TextParams};

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| "demo".to_owned());
    let prompt = env::args()
        .nth(2)
        .unwrap_or_else(|| "Once upon a time".to_owned());
    let model = Model::open(path)?;
    let params = TextParams::new().max_tokens(48);
    print!("{prompt}");
    // `examples/async_stream.rs` does the same without blocking a thread. Dropping the stream ends the generation.
    for piece in model.stream(&prompt, &params)? {
        print!("{}", piece?.text);
        stdout().flush()?;
    }
    println!();
    Ok(())
}
