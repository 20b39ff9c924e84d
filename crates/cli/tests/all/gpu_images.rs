//! Tests images on a machine with a GPU: the CPU computes them and says why, unless a GPU is requested.

use std::path::{Path, PathBuf};

use crate::{
    gpu::{run, with_driver},
    support::arg,
};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/vision/gemma3")
        .join(name)
}

#[test]
fn images_are_computed_on_the_cpu_where_a_gpu_could_be_taken() {
    let [model, encoder, picture] = ["model.gguf", "mmproj-model.gguf", "0.png"].map(data);
    let run_on = |device: &str, extra: &[&str]| {
        let args = [
            "run",
            arg(&model),
            "What is it?",
            "--temp",
            "0",
            "-n",
            "8",
            "-c",
            "256",
            "--device",
            device,
        ];
        run(with_driver("", &[&args[..], extra].concat()))
    };
    let shown = ["--image", arg(&picture)];
    let expected = run_on("cpu", &shown).ok();
    for extra in [&shown[..], &["--image", arg(&picture), "--mmproj", arg(&encoder)]] {
        let found = run_on("auto", extra);
        let said = found.stderr.clone();
        assert!(
            said.contains("computing on the CPU: models on a GPU do not take images yet"),
            "{said}"
        );
        assert_eq!(found.ok(), expected);
    }
    // Without an image the GPU is used; a requested GPU takes no images.
    let said = run_on("auto", &[]).stderr;
    assert!(said.contains("computing on GPU 0"), "{said}");
    let refused = run_on("cuda", &["--image", arg(&picture), "--mmproj", arg(&encoder)]);
    assert!(
        refused.stderr.contains("compute on the CPU with `--device cpu`"),
        "{}",
        refused.stderr
    );
    refused.failed(3);
}
