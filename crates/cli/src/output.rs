//! Standard output, with failures distinguished: a closed reader is not an error, a full disk is. Output
//! files are checked before the work begins.

use std::{
    fmt::Write as _,
    fs,
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
};

use console::Term;
use tokenmill::{LoadOptions, load::Projector};
use tokenmill_convert::{ConvertError, OutputFile};

use crate::{
    failure::Failure,
    hanging::{columns, hanging},
    visible::{is_obeyed, visible_lines},
};

/// Opens a file for writing and leaves it unchanged, so that no measured work is lost.
pub(crate) fn check_writable(path: &Path) -> Result<(), Failure> {
    if OutputFile::is_in_place(path) {
        return Ok(());
    }
    if path.exists() {
        let opened = fs::OpenOptions::new().append(true).open(path);
        opened.map_err(|error| Failure::unwritable(path, error))?;
    }
    OutputFile::create(path)?;
    Ok(())
}

/// Writes a file that is there whole or not at all.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    let mut file = OutputFile::create(path)?;
    file.write_all(text.as_bytes())
        .map_err(|error| Failure::unwritable(path, error))?;
    Ok(file.finish()?)
}

/// Refuses to write over a file that is read, under whatever name. A folder that is read has its weights and its JSON files.
pub(crate) fn refuse_input<P: AsRef<Path>>(output: &Path, inputs: &[P]) -> Result<(), Failure> {
    let Ok(written) = fs::canonicalize(output) else {
        return Ok(());
    };
    let is_of_folder = (written.extension()).is_some_and(|end| end == "safetensors" || end == "json");
    let is_written = |input: &P| {
        fs::canonicalize(input)
            .is_ok_and(|input| input == written || is_of_folder && written.parent() == Some(&*input))
    };
    if inputs.iter().any(is_written) {
        let path = output.to_owned();
        return Err(ConvertError::SameFile { path }.into());
    }
    Ok(())
}

/// Whether a file may be replaced whose making takes long.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct OverwriteArgs {
    /// Replace OUTPUT if it exists
    #[arg(long, alias = "force")]
    overwrite: bool,
}

impl OverwriteArgs {
    /// Refuses to replace a file without being told so. Devices and pipes are written to.
    ///
    /// # Errors
    /// A file that exists.
    pub(crate) fn check(&self, output: &Path) -> Result<(), Failure> {
        if self.overwrite || OutputFile::is_in_place(output) || !output.exists() {
            return Ok(());
        }
        Err(Failure::usage(format!("{} already exists", output.display()))
            .hint("`--overwrite` replaces it; or give another name"))
    }
}

/// Refuses to write over a file that a load reads next to the model itself.
pub(crate) fn refuse_options(output: &Path, options: &LoadOptions) -> Result<(), Failure> {
    refuse_input(output, &files_of(options))
}

/// The files that a load reads next to the model itself.
pub(crate) fn files_of(options: &LoadOptions) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = options.draft.iter().chain(&options.mtp).cloned().collect();
    paths.extend(options.adapters.iter().map(|adapter| adapter.path.clone()));
    paths.extend(options.control_vectors.iter().map(|(path, _)| path.clone()));
    if let Projector::File(path) = &options.projector {
        paths.push(path.clone());
    }
    paths
}

/// Whether a person reads.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Writes generated text. A terminal gets it without the characters that control it, since a model may
/// generate any character; a file or a pipe gets it unchanged.
pub(crate) fn print_generated(text: &str) -> Result<(), Failure> {
    if is_terminal() {
        print(&visible_lines(text))
    } else {
        print(text)
    }
}

/// Writes text and hands it on at once.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::unwritable("standard output", error))
}

/// Writes rows and paragraphs for people. On a terminal, lines that are too long break between words.
pub(crate) fn print_wrapped(text: &str) -> Result<(), Failure> {
    print(&hanging(text, columns(&Term::stdout())))
}

/// Writes a line of words, as [`print_wrapped`] does.
pub(crate) fn print_sentence(text: &str) -> Result<(), Failure> {
    print_wrapped(&format!("{text}\n"))
}

/// Writes a line unchanged.
pub(crate) fn print_line(text: &str) -> Result<(), Failure> {
    print(&format!("{text}\n"))
}

/// Writes a JSON value over several lines, in which strings have no character that a terminal would obey.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print_line(&escape_json(&format!("{value:#}")))
}

/// Escapes the characters that JSON allows unescaped and a terminal obeys: DEL, the second set of control
/// characters, and marks of writing direction. They occur only in strings, where the escape means the same.
fn escape_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c > '\u{7e}' && is_obeyed(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                write!(out, "\\u{unit:04x}").expect("writing to a string does not fail");
            }
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_folder_is_read_from_is_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let [weights, config, made] =
            ["model.safetensors", "config.json", "model.gguf"].map(|name| folder.path().join(name));
        for path in [&weights, &config, &made] {
            fs::write(path, "x").unwrap();
        }
        let refused = |output: &Path| refuse_input(output, &[folder.path()]).is_err();
        assert!(refused(&weights) && refused(&config) && !refused(&made));
        assert!(refuse_input(&made, &[&weights]).is_ok());
        assert!(refuse_input(&folder.path().join("sub/../model.gguf"), &[&made]).is_ok());
        assert!(refuse_input(&folder.path().join("./model.gguf"), &[&made]).is_err());
    }

    #[test]
    fn json_without_control_characters_means_the_same() {
        let value = json!({"a\u{9b}b": "\u{7f}\u{1b}é\u{202e}"});
        let text = escape_json(&value.to_string());
        assert_eq!(text, r#"{"a\u009bb":"\u007f\u001bé\u202e"}"#);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
