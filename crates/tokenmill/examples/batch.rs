//! Answers many prompts side by side: `cargo run --example batch [MODEL]`.

use std::{env, error::Error};

use tokenmill::{KvCache, Model, TextParams};

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| "demo".to_owned());
    // Eight at a time, in a KV cache with room for eight full contexts.
    let mut options = Model::options().context(512).sequences(8);
    options.kv_cache = KvCache::Contexts(8);
    let model = options.load(path)?;

    let prompts: Vec<String> = (1..=20).map(|n| format!("{n} + 1 = ")).collect();
    let params = TextParams::new().max_tokens(8).stop("\n");
    for (prompt, answer) in prompts.iter().zip(model.batch(&prompts, &params)) {
        match answer {
            Ok(answer) => println!("{prompt}{}", answer.text),
            Err(error) => println!("{prompt}failed: {error}"),
        }
    }
    let stats = model.engine().stats();
    println!("[{} tokens generated]", stats.generated_tokens);
    Ok(())
}
