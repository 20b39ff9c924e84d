//! Writes the fuzz target's seed corpus again, `fuzz/seeds`.

#[path = "../tests/all/mutation.rs"]
#[expect(dead_code, reason = "only the sample files are needed here")]
mod mutation;

fn main() -> std::io::Result<()> {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    std::fs::create_dir_all(&dir)?;
    for (name, bytes) in mutation::sample_files() {
        std::fs::write(dir.join(name).with_extension("gguf"), bytes)?;
    }
    Ok(())
}
