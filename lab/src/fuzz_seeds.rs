//! `fuzz-seeds`: writes the seed corpora of fuzz targets again, `crates/*/fuzz/seeds`. The tests that own the
//! samples only report stale seeds.

#[path = "../../crates/gguf/tests/all/mutation.rs"]
#[expect(dead_code, reason = "only the sample files are needed here")]
mod mutation;
#[path = "../../crates/text/tests/all/support/vocabularies.rs"]
mod vocabularies;

use std::fs;

use tokenmill_gguf::GgufWriter;

/// Write the seeds of the fuzz targets of `gguf` and `text` again
#[derive(clap::Args)]
pub struct Args {}

/// Writes them.
///
/// # Errors
/// A folder or a file that cannot be written.
pub fn run(_: &Args) -> anyhow::Result<()> {
    let crates = crate::workspace_root().join("crates");
    let seeds = crates.join("gguf/fuzz/seeds");
    fs::create_dir_all(&seeds)?;
    for (name, bytes) in mutation::sample_files() {
        fs::write(seeds.join(name).with_extension("gguf"), bytes)?;
    }
    let seeds = crates.join("text/fuzz/seeds");
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
    fs::copy(
        crates.join("text/tests/all/support/tokenizer.json"),
        seeds.join("tokenizer_json/bpe.json"),
    )?;
    Ok(())
}
