//! Writes the fuzz targets' seed corpora again, `fuzz/seeds`.

#[path = "../tests/all/support/vocabularies.rs"]
mod vocabularies;

use std::{error::Error, fs, path::Path};

use tokenmill_gguf::GgufWriter;

fn main() -> Result<(), Box<dyn Error>> {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    fs::create_dir_all(seeds.join("metadata"))?;
    fs::create_dir_all(seeds.join("tokenizer_json"))?;
    for (name, metadata) in [
        ("gpt-2", vocabularies::byte_level("gpt-2")),
        ("deepseek-v3", vocabularies::byte_level("deepseek-v3")),
        ("llama", vocabularies::sentencepiece()),
        ("t5", vocabularies::unigram()),
        ("bert", vocabularies::wordpiece()),
    ] {
        let bytes = GgufWriter::with_metadata(metadata)
            .write_header(Vec::new())?
            .finish()?;
        fs::write(seeds.join("metadata").join(name).with_extension("gguf"), bytes)?;
    }
    fs::write(
        seeds.join("tokenizer_json/bpe.json"),
        include_str!("../tests/all/support/tokenizer.json"),
    )?;
    Ok(())
}
