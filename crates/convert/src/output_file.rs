//! [`OutputFile`]: a file that is there whole or not at all.
//!
//! Separate because everything that is written goes this way. Invariant: the name that was asked for never names a part of a file; what
//! is not finished is removed.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process,
};

use crate::ConvertError;

/// Names that are tried where others are taken.
const MAX_TAKEN: u32 = 1000;

/// A file that is written under another name and gets its own at the end.
#[derive(Debug)]
pub(crate) struct OutputFile {
    file: File,
    path: PathBuf,
    /// Where it lies until it is finished; `None` afterwards.
    aside: Option<PathBuf>,
}

impl OutputFile {
    /// Begins a file next to where it will lie.
    pub(crate) fn create(path: &Path) -> Result<Self, ConvertError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // What a killed process left may have the number that this one has, as in a container.
        let mut n_taken = 0;
        loop {
            let aside = path.with_file_name(format!(".{name}.{}-{n_taken}.incomplete", process::id()));
            match File::create_new(&aside) {
                Ok(file) => {
                    return Ok(Self {
                        file,
                        path: path.to_owned(),
                        aside: Some(aside),
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && n_taken < MAX_TAKEN => {
                    n_taken += 1;
                }
                Err(source) => {
                    return Err(ConvertError::Io {
                        what: "create",
                        path: path.to_owned(),
                        source,
                    });
                }
            }
        }
    }

    /// Brings the bytes to the disk and gives the file its name.
    pub(crate) fn finish(mut self) -> Result<(), ConvertError> {
        let io_error = |source| ConvertError::Io {
            what: "write",
            path: self.path.clone(),
            source,
        };
        self.file.sync_all().map_err(io_error)?;
        if let Some(aside) = self.aside.take() {
            fs::rename(&aside, &self.path).map_err(|source| {
                // The rename's failure is what matters.
                let _ = fs::remove_file(&aside);
                io_error(source)
            })?;
        }
        Ok(())
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Some(aside) = &self.aside {
            // There is no caller to tell here, and the error that led here is told.
            let _ = fs::remove_file(aside);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finished_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.gguf");
        let n_files = || fs::read_dir(folder.path()).unwrap().count();
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"part").unwrap();
        assert!(!path.exists());
        // Another of the same name and process.
        drop(OutputFile::create(&path).unwrap());
        drop(file);
        assert_eq!(n_files(), 0);
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"whole").unwrap();
        file.finish().unwrap();
        assert_eq!((fs::read(&path).unwrap(), n_files()), (b"whole".to_vec(), 1));
    }
}
