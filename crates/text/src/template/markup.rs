//! [`escape_html`], for templates that mark text as safe. The filter `escape` and the operators on marked
//! text share it.

use super::{error::Fault, meter::TextBuf};

/// Escapes text for HTML as MarkupSafe does.
pub(super) fn escape_html(text: &str, out: &mut TextBuf) -> Result<(), Fault> {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;")?,
            '<' => out.push_str("&lt;")?,
            '>' => out.push_str("&gt;")?,
            '"' => out.push_str("&#34;")?,
            '\'' => out.push_str("&#39;")?,
            _ => out.push(c)?,
        }
    }
    Ok(())
}
