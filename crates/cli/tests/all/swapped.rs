//! Files in the wrong places: a prompt for a model, a model for a prompt.

use std::fs;

use crate::support::{DEMO_GGUF, arg, tokenmill};

#[test]
fn a_prompt_for_a_model_and_a_model_for_a_prompt_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let [model, prompt] = ["model.gguf", "prompt.txt"].map(|name| folder.path().join(name));
    fs::write(&model, DEMO_GGUF).unwrap();
    fs::write(&prompt, "Once upon a time").unwrap();
    let (model, prompt) = (arg(&model), arg(&prompt));
    for (args, code, said, hint) in [
        (
            &["run", "--raw", prompt][..],
            3,
            format!("{prompt} is a text file; a model is expected here"),
            format!("`tokenmill run MODEL -f {prompt}`"),
        ),
        (
            &["run", "--raw", "-f", model],
            2,
            format!("`-f` reads a prompt, and {model} is a model"),
            format!("`tokenmill run {model} PROMPT`"),
        ),
        (
            &["run", "--raw", "--file", prompt],
            2,
            "there is no model".to_owned(),
            format!("`tokenmill run MODEL -f {prompt}`"),
        ),
        (
            &["run", "--raw", "demo", "-f", model],
            3,
            format!("{model} is a GGUF file; a text is expected here"),
            "give the model as MODEL".to_owned(),
        ),
        (
            &["perplexity", "demo", model],
            3,
            format!("{model} is a GGUF file; a text is expected here"),
            "give the model as MODEL".to_owned(),
        ),
    ] {
        let line = tokenmill(args).failed(code);
        assert!(line.contains(&said) && line.contains(&hint), "{line}");
    }
    let answer = tokenmill(["run", "--raw", model, "-f", prompt, "-n", "3", "--temp", "0"]).ok();
    assert!(answer.starts_with("Once upon a time"), "{answer}");
}
