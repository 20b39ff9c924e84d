//! [`MtpFile`]: an MTP layer in a separate file, named or found next to the model.
//!
//! The load of a layer does not depend on its place. Invariant: a found file that does not fit the model is
//! ignored; a named one is an error that says why.

use std::{
    cmp::Reverse,
    fs,
    path::{Path, PathBuf},
};

use tokenmill_gguf::NextnName;
use tokenmill_model::{LoadError, Model as Network, Nextn, NextnFile};
use tokenmill_text::Tokenizer;

use crate::{Error, model_source::ModelSource, vocabularies::difference_of};

/// A file with a layer that fits a model; headers were read.
pub(crate) struct MtpFile {
    path: PathBuf,
    file: NextnFile,
}

impl MtpFile {
    /// Opens a file that is named. Without the model's tokenizer, vocabularies are compared by their size alone.
    ///
    /// # Errors
    /// [`Error::Mtp`] of one that cannot be opened or is another model's, [`Error::MtpVocabulary`].
    pub(crate) fn named(
        path: &Path,
        network: &Network,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Self, Error> {
        let file = NextnFile::open(path).map_err(unusable(path))?;
        let opened = Self {
            path: path.to_owned(),
            file,
        };
        opened.layer(network)?;
        // A file may leave the words to the model.
        let metadata = opened.file.metadata();
        if let Some(of_model) = tokenizer.filter(|_| metadata.get("tokenizer.ggml.model").is_some()) {
            let own = Tokenizer::from_gguf(metadata).map_err(|source| Error::Tokenizer {
                path: path.to_owned(),
                source,
            })?;
            if let Some(difference) = difference_of(of_model, &own) {
                return Err(Error::MtpVocabulary {
                    path: path.to_owned(),
                    difference,
                });
            }
        }
        Ok(opened)
    }

    /// Finds the file for a model: the nearest, then the one with the most similar name, then the smallest.
    pub(crate) fn beside(
        source: &ModelSource,
        network: &Network,
        tokenizer: Option<&Tokenizer>,
    ) -> Option<Self> {
        let ModelSource::File(model) = source else {
            return None;
        };
        let mut paths = folders_of(model)
            .into_iter()
            .flat_map(|folder| files_in(folder, model));
        paths.find_map(|path| Self::named(&path, network, tokenizer).ok())
    }

    /// The layer, as that of a model for which it was opened.
    ///
    /// # Errors
    /// [`Error::Mtp`].
    pub(crate) fn layer<'a>(&'a self, network: &'a Network) -> Result<Nextn<'a>, Error> {
        self.file.layer_for(network).map_err(unusable(&self.path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn unusable(path: &Path) -> impl FnOnce(LoadError) -> Error + use<'_> {
    |source| Error::Mtp {
        path: path.to_owned(),
        source: Box::new(source),
    }
}

/// Where such a file may lie: in the model's folder, and in a snapshot of the Hub's cache also in those above it, as repositories have
/// types in folders of their own.
fn folders_of(model: &Path) -> Vec<&Path> {
    let Some(own) = model.parent() else {
        return Vec::new();
    };
    let is_snapshot = |folder: &&Path| {
        let above = folder.parent().and_then(Path::file_name);
        above.is_some_and(|name| name == "snapshots")
    };
    let n_folders = own.ancestors().position(|folder| is_snapshot(&folder));
    own.ancestors().take(n_folders.unwrap_or(0) + 1).collect()
}

/// The files of a folder that are called as such, those first that are called most like the model, then the smaller ones.
fn files_in(folder: &Path, model: &Path) -> Vec<PathBuf> {
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let model = model.file_name().unwrap_or_default().to_string_lossy();
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let n_same = NextnName::of(&name)?.likeness(&model);
            let n_bytes = fs::metadata(entry.path()).ok()?.len();
            Some((Reverse(n_same), n_bytes, name))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(.., name)| folder.join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_for_in_the_folder_and_up_to_the_snapshot() {
        let check = |model: &str, expected: &[&str]| {
            let folders = folders_of(Path::new(model));
            let expected: Vec<&Path> = expected.iter().map(Path::new).collect();
            assert_eq!(folders, expected, "{model}");
        };
        check("a/b/m.gguf", &["a/b"]);
        check("m.gguf", &[""]);
        check("/c/snapshots/0123/m.gguf", &["/c/snapshots/0123"]);
        let two = ["/c/snapshots/0123/Q8_0", "/c/snapshots/0123"];
        check("/c/snapshots/0123/Q8_0/m.gguf", &two);
    }

    #[test]
    fn of_several_that_of_the_model_is_first_and_then_the_smallest() {
        let folder = tempfile::tempdir().unwrap();
        let sizes = [
            ("mtp-m-Q8_0.gguf", 9),
            ("mtp-m-Q4_0.gguf", 5),
            ("MTP-n-Q4_0.gguf", 1),
            ("nextn-n-BF16.gguf", 2),
            ("mtp-notes.txt", 1),
            ("m-Q4_0.gguf", 1),
        ];
        for (name, size) in sizes {
            fs::write(folder.path().join(name), vec![0; size]).unwrap();
        }
        let check = |model: &str, expected: [&str; 4]| {
            let found = files_in(folder.path(), &folder.path().join(model));
            assert_eq!(found, expected.map(|name| folder.path().join(name)), "{model}");
        };
        let [q8, q4, other, wide] = [
            "mtp-m-Q8_0.gguf",
            "mtp-m-Q4_0.gguf",
            "MTP-n-Q4_0.gguf",
            "nextn-n-BF16.gguf",
        ];
        check("M-Q8_0.gguf", [q8, q4, other, wide]);
        check("m-Q4_0.gguf", [q4, q8, other, wide]);
        check("m-Q5_K_M-00001-of-00002.gguf", [q4, q8, other, wide]);
        check("x.gguf", [other, wide, q4, q8]);
    }
}
