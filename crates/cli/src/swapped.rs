//! Hints for a model given in place of a text, for a text given in place of a model, and for a type given in place of a file.
//!
//! Files show the mistake by their contents. Invariant: only the beginning of a file is read.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use tokenmill::convert::Preset;
use tokenmill_gguf::{ReadAt as _, RegularFile, looks_like};

use crate::{argv, failure::Failure};

/// The first bytes of GGUF files.
const MAGIC: &[u8] = b"GGUF";
/// Bytes that identify the kind of a file.
const TELLING_BYTES: u64 = 512;

/// Returns the beginning of a file, if the path is one.
fn beginning(path: &Path) -> Option<Vec<u8>> {
    let file = RegularFile::open(path).ok()?;
    let mut bytes = vec![0; file.n_bytes().min(TELLING_BYTES) as usize];
    file.read_exact_at(0, &mut bytes).ok()?;
    Some(bytes)
}

/// Whether a file is a model.
fn is_gguf(path: &Path) -> bool {
    beginning(path).is_some_and(|bytes| bytes.starts_with(MAGIC))
}

/// Refuses a model where a text is read.
///
/// # Errors
/// A GGUF file.
pub(crate) fn refuse_model_as_text(path: &Path) -> Result<(), Failure> {
    if is_gguf(path) {
        let message = format!("{} is a GGUF file; a text is expected here", path.display());
        return Err(Failure::input(message).hint("give the model as MODEL; a text is a UTF-8 file"));
    }
    Ok(())
}

/// Refuses a text where `run` expects a model: people give the prompt first.
///
/// # Errors
/// A text whose name is not that of a model.
pub(crate) fn refuse_prompt_as_model(path: &Path) -> Result<(), Failure> {
    if path.extension().is_some_and(|extension| extension == "gguf") {
        return Ok(());
    }
    let looks_like = beginning(path)
        .filter(|bytes| !bytes.is_empty())
        .map(|bytes| looks_like(&bytes));
    if looks_like == Some("text") {
        let name = path.display();
        return Err(
            Failure::input(format!("{name} is a text file; a model is expected here")).hint(format!(
                "a file with a prompt comes with `-f`, after the model: `tokenmill run MODEL -f {name}`"
            )),
        );
    }
    Ok(())
}

/// Returns the answer to the command `run` with a prompt file and without a model.
pub(crate) fn file_without_model(command: &str, args: &[OsString]) -> Option<Failure> {
    if command != "run" {
        return None;
    }
    let file = prompt_file(args)?;
    let name = file.display();
    Some(if is_gguf(&file) {
        Failure::usage(format!("`-f` reads a prompt, and {name} is a model")).hint(format!(
            "a model is given without an option: `tokenmill run {name} PROMPT`"
        ))
    } else {
        Failure::usage("there is no model").hint(format!(
            "give the model before or after the prompt's file: `tokenmill run MODEL -f {name}`"
        ))
    })
}

/// Whether a word is the name of a type that `quantize` makes.
fn is_type(word: &OsStr) -> bool {
    word.to_str().is_some_and(|word| word.parse::<Preset>().is_ok())
}

/// Returns the answer to `quantize` with an input and a type, which llama-quantize takes.
pub(crate) fn type_without_output(command: &clap::Command, args: &[OsString]) -> Option<Failure> {
    let words = positionals(command, args);
    let (input, ty) = match words[..] {
        [input, ty] if command.get_name() == "quantize" => (Path::new(input), Path::new(ty)),
        _ => return None,
    };
    let ty = ty.file_name().filter(|name| is_type(name))?.to_string_lossy();
    let output = match input.file_stem() {
        Some(stem) => format!("{}-{ty}.gguf", stem.to_string_lossy()),
        None => "OUTPUT".to_owned(),
    };
    let failure = Failure::usage("OUTPUT is missing");
    let input = input.display();
    Some(failure.hint(format!(
        "it stands before the type: `tokenmill quantize {input} {output} {ty}`"
    )))
}

/// The arguments after the command that are neither options nor values of options.
fn positionals<'a>(command: &clap::Command, args: &'a [OsString]) -> Vec<&'a OsStr> {
    let mut found = Vec::new();
    let mut rest = args.iter().skip(2);
    while let Some(arg) = rest.next() {
        let text = arg.to_string_lossy();
        let name = text.split('=').next().unwrap_or_default();
        if !name.starts_with('-') {
            found.push(arg.as_os_str());
            continue;
        }
        let n_values = argv::n_values_of(command, name).unwrap_or(0);
        if n_values > 0 && name.len() == text.len() {
            rest.nth(n_values - 1);
        }
    }
    found
}

/// Returns the answer to `quantize` with `output` in the type's place and a type in the output's.
pub(crate) fn type_before_output(
    command: &clap::Command,
    output: &str,
    args: &[OsString],
) -> Option<Failure> {
    let words = positionals(command, args);
    let at = words.iter().position(|word| *word == output)?;
    let (ty, before) = words[..at].split_last()?;
    let is_file = output.contains(['.', '/', '\\']);
    (command.get_name() == "quantize" && is_file && is_type(ty)).then(|| {
        let ty = ty.to_string_lossy();
        let input = before
            .last()
            .map_or("INPUT".into(), |input| input.to_string_lossy());
        Failure::usage(format!("`{ty}` is a type, and OUTPUT is expected in its place")).hint(format!(
            "the type comes last: `tokenmill quantize {input} {output} {ty}`"
        ))
    })
}

/// Refuses the name of a type as the name of `quantize`'s output.
///
/// # Errors
/// Such a name.
pub(crate) fn refuse_type_as_output(input: &Path, output: &Path) -> Result<(), Failure> {
    if is_type(output.as_os_str()) {
        let (input, ty) = (input.display(), output.display());
        return Err(
            Failure::usage(format!("`{ty}` is a type, and OUTPUT is expected in its place")).hint(format!(
                "`tokenmill quantize {input} OUTPUT {ty}` makes it; `./{ty}` is a file of this name"
            )),
        );
    }
    Ok(())
}

/// The value of `-f`, in all forms that it may be written in.
fn prompt_file(args: &[OsString]) -> Option<PathBuf> {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        match text.strip_prefix("--file").or_else(|| text.strip_prefix("-f")) {
            Some("") => return args.next().map(PathBuf::from),
            Some(rest) if text.starts_with("--") => {
                if let Some(value) = rest.strip_prefix('=') {
                    return Some(value.into());
                }
            }
            Some(rest) => return Some(rest.trim_start_matches('=').into()),
            None => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompts_file_is_found_in_all_forms() {
        for (args, expected) in [
            (&["run", "-f", "a b"][..], Some("a b")),
            (&["run", "-fa"], Some("a")),
            (&["run", "-f=a"], Some("a")),
            (&["run", "--file", "a"], Some("a")),
            (&["run", "--file=a"], Some("a")),
            (&["run", "--files=a"], None),
            (&["run", "-f"], None),
        ] {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            assert_eq!(prompt_file(&args).as_deref(), expected.map(Path::new), "{args:?}");
        }
    }
}
