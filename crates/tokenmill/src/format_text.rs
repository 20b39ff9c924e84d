//! [`format_text`]: the memory layout of a backend's sequences, as a text.
//!
//! Session files and prefix folders both contain it. Invariant: equal formats have equal texts.

use tokenmill_backend::MemoryFormat;

/// A memory format as text, which is equal where the formats are.
pub(crate) fn format_text(format: &MemoryFormat) -> String {
    let [main, window] = format.page_bytes;
    format!(
        "{} keys {} values {} pages {main} {window} states {}",
        format.arrangement, format.key_type, format.value_type, format.state_bytes
    )
}

/// The types of keys and values that [`format_text`] has written.
pub(crate) fn types_of(format: &str) -> Option<(&str, &str)> {
    let mut words = format.split_whitespace();
    words.find(|&word| word == "keys")?;
    let keys = words.next()?;
    let values = (words.next()? == "values").then(|| words.next())??;
    Some((keys, values))
}
