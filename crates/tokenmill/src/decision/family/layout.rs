//! [`HeadLayout`]: the form of a prompt with a mark before each option, and the lengths to which training cut its parts.
//!
//! ```text
//! [CLS] question [SEP] ([MASK] option)* [SEP] state [SEP]
//! ```
//!
//! Invariant: a prompt that was cut has as many marks as options, and all of its state.

/// Most tokens of an option, its mark apart.
const MAX_OPTION_TOKENS: usize = 48;

/// Fewest tokens that options are cut to where there are many, their marks included.
const MIN_OPTION_TOKENS: usize = 4;

/// Tokens that are kept free for the question where the options fill the rest.
const N_QUESTION_TOKENS: usize = 16;

/// Fewest tokens that a question is cut to.
const MIN_QUESTION_TOKENS: usize = 8;

/// The tokens of a layout, and its bound.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadLayout {
    /// The token before each option.
    pub(super) mark: u32,
    pub(super) separator: u32,
    /// Most tokens of the question and the options together.
    pub(super) max_tokens: usize,
}

impl HeadLayout {
    /// Cuts question and options as the model was trained; returns the prompt and the places of its marks. `None` if the prompt has
    /// another form.
    pub(super) fn cut(&self, tokens: &[u32], n_options: usize) -> Option<(Vec<u32>, Vec<usize>)> {
        let marks = tokens
            .iter()
            .enumerate()
            .filter(|&(_, &token)| token == self.mark);
        let marks: Vec<usize> = marks.map(|(place, _)| place).collect();
        let (&first, &last) = (marks.first()?, marks.last()?);
        let options_end = last + tokens[last..].iter().position(|&token| token == self.separator)?;
        let is_formed = marks.len() == n_options
            && first >= 2
            && tokens[first - 1] == self.separator
            && options_end + 1 < tokens.len()
            && tokens.last() == Some(&self.separator);
        if !is_formed {
            return None;
        }
        let ends = marks[1..].iter().chain([&options_end]);
        let options: Vec<&[u32]> = marks
            .iter()
            .zip(ends)
            .map(|(&start, &end)| &tokens[start..end])
            .collect();
        let total = |longest: usize| {
            options
                .iter()
                .map(|option| option.len().min(longest))
                .sum::<usize>()
        };
        let mut longest = MAX_OPTION_TOKENS + 1;
        if total(longest) + N_QUESTION_TOKENS > self.max_tokens {
            let each = self.max_tokens.saturating_sub(N_QUESTION_TOKENS) / n_options;
            longest = longest.min(each.max(MIN_OPTION_TOKENS));
        }
        let question = &tokens[1..first - 1];
        let for_question = (self.max_tokens.saturating_sub(total(longest))).max(MIN_QUESTION_TOKENS);
        let mut cut = vec![tokens[0]];
        cut.extend(&question[..question.len().min(for_question)]);
        cut.push(self.separator);
        let mut places = Vec::with_capacity(n_options);
        for option in options {
            places.push(cut.len());
            cut.extend(&option[..option.len().min(longest)]);
        }
        cut.extend(&tokens[options_end..]);
        Some((cut, places))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: HeadLayout = HeadLayout {
        mark: 3,
        separator: 2,
        max_tokens: 40,
    };

    /// A prompt of parts of these lengths, whose texts are their own tokens.
    fn prompt(n_question: usize, options: &[usize]) -> Vec<u32> {
        let mut tokens = vec![1];
        tokens.extend(std::iter::repeat_n(10, n_question));
        tokens.push(2);
        for (idx, &n) in options.iter().enumerate() {
            tokens.push(3);
            tokens.extend(std::iter::repeat_n(20 + idx as u32, n));
        }
        tokens.extend([2, 30, 31, 32, 2]);
        tokens
    }

    #[test]
    fn short_prompts_stay_as_they_are() {
        let tokens = prompt(4, &[2, 3]);
        assert_eq!(LAYOUT.cut(&tokens, 2), Some((tokens, vec![6, 9])));
    }

    #[test]
    fn long_questions_and_options_are_cut_to_the_bound() {
        // The question gets what the options leave.
        assert_eq!(
            LAYOUT.cut(&prompt(100, &[5, 5]), 2),
            Some((prompt(28, &[5, 5]), vec![30, 36]))
        );
        // Options share the bound less 16, and keep 4 tokens at least.
        assert_eq!(
            LAYOUT.cut(&prompt(100, &[30, 5]), 2),
            Some((prompt(22, &[11, 5]), vec![24, 36]))
        );
        let (cut, _) = LAYOUT.cut(&prompt(100, &[9; 20]), 20).unwrap();
        assert_eq!(cut, prompt(8, &[3; 20]));
        let wide = HeadLayout {
            max_tokens: 256,
            ..LAYOUT
        };
        let (cut, _) = wide.cut(&prompt(2, &[60, 5]), 2).unwrap();
        assert_eq!(cut, prompt(2, &[48, 5]));
    }

    #[test]
    fn another_form_is_refused() {
        let tokens = prompt(4, &[2, 3]);
        assert_eq!(LAYOUT.cut(&tokens, 3), None);
        assert_eq!(LAYOUT.cut(&tokens[..tokens.len() - 1], 2), None);
        assert_eq!(LAYOUT.cut(&tokens[5..], 2), None);
        assert_eq!(LAYOUT.cut(&[], 0), None);
    }
}
