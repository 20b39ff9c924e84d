//! [`Table`]: a table in Markdown, and the cells of one.

use std::fmt::{self, Display, Write as _};

/// A table in Markdown.
#[derive(Debug)]
pub(crate) struct Table {
    text: String,
}

impl Table {
    /// Begins a table. A column of numbers has a title that ends in `:`, which is not shown.
    pub(crate) fn new(titles: &[&str]) -> Self {
        let is_number = |title: &&str| title.ends_with(':');
        let marks: Vec<&str> = (titles.iter())
            .map(|title| if is_number(title) { "---:" } else { "---" })
            .collect();
        let titles: Vec<&str> = titles.iter().map(|title| title.trim_end_matches(':')).collect();
        let text = format!("| {} |\n|{}|\n", titles.join(" | "), marks.join("|"));
        Self { text }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: &[&dyn Display]) {
        for cell in cells {
            let _ = write!(self.text, "| {cell} ");
        }
        self.text.push_str("|\n");
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Renders a number with so many digits after the point, or a dash.
pub(crate) fn number(value: Option<f64>, n_digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.n_digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_of_numbers_is_aligned_to_the_right() {
        let mut table = Table::new(&["kernel", "us:"]);
        table.row(&[&"norm", &number(Some(1.25), 1)]);
        table.row(&[&"argmax", &number(None, 1)]);
        assert_eq!(
            table.to_string(),
            "| kernel | us |\n|---|---:|\n| norm | 1.2 |\n| argmax | - |\n"
        );
    }
}
