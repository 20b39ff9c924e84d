//! Computes a model on a backend that this library does not know: `cargo run --example own_backend [MODEL]`.
//!
//! A backend implements `tokenmill_backend::Backend`, the operations of programs, and becomes a device by
//! `tokenmill_backend::program::Bridge`. This one is the test kit's, plain loops over f32 numbers:
//! `crates/testkit/src/naive_backend` is a model for your own.

use std::{env, error::Error};

use tokenmill::{Model, TextParams};
use tokenmill_testkit::NaiveBackend;

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| "demo".to_owned());
    let options = Model::options().context(256).sequences(2);
    let own = options.load_on(&path, NaiveBackend::new())?;
    println!("{} computes on {}", own.name(), own.device());

    let params = TextParams::new().max_tokens(12);
    let text = own.complete("Once upon a time", &params)?.text;
    println!("Once upon a time{text}");
    // The tokenizer, the scheduler and the sampler are the same, so the texts differ by rounding only.
    let shipped = options.load(&path)?.complete("Once upon a time", &params)?.text;
    println!(
        "the shipped backend says {}",
        if shipped == text { "the same" } else { &shipped }
    );
    Ok(())
}
