//! Finds the text that is closest in meaning: `cargo run --example embeddings [MODEL]`.

use std::{env, error::Error};

use tokenmill::Model;

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| "demo".to_owned());
    let model = Model::open(path)?;
    let texts = ["The cat sat on the mat.", "A cat is on a mat.", "3 + 4 = 7"];
    let vectors = model.embed(&texts)?;
    println!("{} numbers each", vectors[0].len());
    // Vectors have length 1, so their product is the cosine of the angle between them.
    for (text, vector) in texts.iter().zip(&vectors).skip(1) {
        let cosine: f32 = vectors[0].iter().zip(vector).map(|(a, b)| a * b).sum();
        println!("{cosine:.3} {text}");
    }
    Ok(())
}
