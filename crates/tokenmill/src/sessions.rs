//! Conversations and prompt prefixes in files, together with their keys and values.

pub use crate::{
    folder_lock::FolderLock,
    page_file::PageFileHeader,
    prefix_folder::{PrefixFolder, PrefixFolderFigures},
    session::{Session, SessionFile, SessionSize, remove_unfinished_sessions},
    session_error::SessionError,
};
