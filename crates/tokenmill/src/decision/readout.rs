//! [`Readout`]: how the rows of a pass become an answer.
//!
//! A label reader has one row of logits, a decision head a row of scores at each option's mark. Invariant: rows are added in the order
//! of their tokens, and an answer depends on nothing else.

use super::answer::{Decision, softmax};

/// The places of a question's options in the rows of a pass.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Readout {
    /// The token of each option's label.
    Labels(Vec<u32>),
    /// The tokens of a scale from no to yes, whose mean is the probability of yes.
    Scale(Vec<u32>),
    /// The row of each option, counted from the first that is read, and the column of the question's type.
    Marks { rows: Vec<usize>, column: usize },
    /// The row of each option, whose second half is a key; the first half of the last row is the query.
    Pointer { rows: Vec<usize> },
}

/// The rows of a pass that were read so far.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    answer: Option<Decision>,
    /// The question type's column of the rows so far.
    scores: Vec<f32>,
    /// Number of rows so far, the options' keys in the order of their rows, and the query of the last row.
    n_rows: usize,
    keys: Vec<(usize, Vec<f32>)>,
    query: Vec<f32>,
}

impl Reading {
    /// Reads the next row.
    pub(crate) fn add(&mut self, readout: &Readout, row: &[f32], temperature: f64) {
        match readout {
            Readout::Labels(labels) => self.answer = Decision::of_logits(row, labels, temperature),
            Readout::Scale(ratings) => {
                let of_ratings = Decision::of_logits(row, ratings, temperature);
                self.answer = of_ratings.map(|ratings| {
                    let yes = ratings.expected_level() / (ratings.probabilities.len() as f64 - 1.0);
                    Decision {
                        probabilities: vec![yes, 1.0 - yes],
                        label_mass: ratings.label_mass,
                    }
                });
            }
            Readout::Marks { column, .. } => self.scores.push(row[*column]),
            Readout::Pointer { rows } => {
                let (query, key) = row.split_at(row.len() / 2);
                if rows.contains(&self.n_rows) {
                    self.keys.push((self.n_rows, key.to_vec()));
                }
                self.n_rows += 1;
                self.query.clear();
                self.query.extend(query);
            }
        }
    }

    /// Returns the answer once all rows were read, and forgets them; `None` if they are not numbers.
    pub(crate) fn finish(&mut self, readout: &Readout, temperature: f64) -> Option<Decision> {
        let read = std::mem::take(self);
        let of_options: Option<Vec<f64>> = match readout {
            Readout::Labels(_) | Readout::Scale(_) => return read.answer,
            Readout::Marks { rows, .. } => {
                let scores = rows
                    .iter()
                    .map(|&row| read.scores.get(row).copied().map(f64::from));
                scores.collect()
            }
            Readout::Pointer { rows } => rows.iter().map(|row| read.product(*row)).collect(),
        };
        let of_options = of_options?;
        if of_options.iter().any(|score| !score.is_finite()) {
            return None;
        }
        Some(Decision {
            probabilities: softmax(&of_options, temperature),
            // A head scores options and nothing else.
            label_mass: 1.0,
        })
    }

    /// Returns the product of the query and the key of a row, divided by the root of their width.
    fn product(&self, row: usize) -> Option<f64> {
        let (_, key) = self.keys.iter().find(|(place, _)| *place == row)?;
        let terms = key.iter().zip(&self.query);
        let sum: f64 = terms.map(|(&k, &q)| f64::from(k) * f64::from(q)).sum();
        Some(sum / (key.len() as f64).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(readout: &Readout, rows: &[&[f32]], temperature: f64) -> Option<Decision> {
        let mut reading = Reading::default();
        for row in rows {
            reading.add(readout, row, temperature);
        }
        reading.finish(readout, temperature)
    }

    #[test]
    fn a_scale_answers_with_its_mean() {
        let scale = Readout::Scale(vec![0, 1, 2]);
        let half = 2f32.ln();
        // Weights 1, 2, 1 and one more token outside of the scale.
        let found = read(&scale, &[&[0.0, half, 0.0, 0.0]], 1.0).unwrap();
        assert!((found.probabilities[0] - 0.5).abs() < 1e-6, "{found:?}");
        assert!((found.probabilities[1] - 0.5).abs() < 1e-6, "{found:?}");
        assert!((found.label_mass - 0.8).abs() < 1e-6, "{found:?}");
        let yes = read(&scale, &[&[-50.0, -50.0, 50.0, 0.0]], 1.0).unwrap();
        assert!(yes.probabilities[0] > 0.999, "{yes:?}");
        assert_eq!(read(&scale, &[&[f32::NAN, 0.0, 0.0]], 1.0), None);
    }

    #[test]
    fn a_pointer_is_the_product_of_the_last_query_and_each_key() {
        let pointer = Readout::Pointer { rows: vec![2, 0] };
        // Queries, then keys; only the last query counts.
        let rows: [&[f32]; 4] = [
            &[9.0, 9.0, 9.0, 9.0, 1.0, 0.0, 0.0, 0.0],
            &[9.0; 8],
            &[9.0, 9.0, 9.0, 9.0, 0.0, 1.0, 0.0, 0.0],
            &[0.0, 2.0 * 4f32.ln(), 5.0, 5.0, 9.0, 9.0, 9.0, 9.0],
        ];
        let found = read(&pointer, &rows, 1.0).unwrap();
        assert!((found.probabilities[0] - 0.8).abs() < 1e-6, "{found:?}");
        assert_eq!(read(&pointer, &rows[..2], 1.0), None, "a row is missing");
    }

    #[test]
    fn marks_are_read_in_their_column_and_order() {
        let marks = Readout::Marks {
            rows: vec![2, 0],
            column: 1,
        };
        let rows: [&[f32]; 3] = [&[9.0, 0.0, 9.0], &[9.0, 8.0, 9.0], &[9.0, 4f32.ln(), 9.0]];
        let found = read(&marks, &rows, 1.0).unwrap();
        assert!((found.probabilities[0] - 0.8).abs() < 1e-6, "{found:?}");
        let found = read(&marks, &rows, 2.0).unwrap();
        assert!((found.probabilities[0] - 2.0 / 3.0).abs() < 1e-6, "{found:?}");
        assert_eq!(read(&marks, &rows[..2], 1.0), None, "a row is missing");
        assert_eq!(read(&marks, &[&[0.0, f32::NAN], &[0.0; 2], &[0.0; 2]], 1.0), None);
    }
}
