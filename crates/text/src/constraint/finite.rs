//! Decides whether a compiled grammar has any finite text.
//!
//! The compiler of grammars does not check this: a rule that needs itself compiles, and a model would write until a limit
//! ends it. Invariant: each round is linear in the size of the grammar, and there are no more rounds than symbols.

use std::collections::HashMap;

use llguidance::earley::{CGrammar, CSymIdx};

/// Returns whether the start symbol of `grammar` derives a finite text.
pub(super) fn has_finite_text(grammar: &CGrammar) -> bool {
    // All symbols reachable from the start symbol, and the rules in which each occurs.
    let mut symbols = vec![grammar.start()];
    let mut place_of: HashMap<CSymIdx, usize> = HashMap::from([(grammar.start(), 0)]);
    // For each rule: the symbol that it makes, and the number of its parts that may be infinite.
    let mut rules: Vec<(usize, usize)> = Vec::new();
    let mut rules_with: Vec<Vec<usize>> = vec![Vec::new()];
    let mut next = 0;
    while next < symbols.len() {
        for &rule in grammar.rules_of(symbols[next]) {
            let (parts, _, _) = grammar.rule_rhs(rule);
            for &part in parts {
                let place = *place_of.entry(part).or_insert_with(|| {
                    symbols.push(part);
                    rules_with.push(Vec::new());
                    symbols.len() - 1
                });
                rules_with[place].push(rules.len());
            }
            rules.push((next, parts.len()));
        }
        next += 1;
    }
    let ends_at_once = |symbol: CSymIdx| {
        let data = grammar.sym_data(symbol);
        data.is_terminal || data.lexeme.is_some() || data.is_nullable || !data.cond_nullable.is_empty()
    };
    let mut ends: Vec<bool> = symbols.iter().map(|&symbol| ends_at_once(symbol)).collect();
    let mut news: Vec<usize> = (0..symbols.len()).filter(|&place| ends[place]).collect();
    for &(symbol, n_parts) in &rules {
        if n_parts == 0 && !std::mem::replace(&mut ends[symbol], true) {
            news.push(symbol);
        }
    }
    while let Some(place) = news.pop() {
        for &rule in &rules_with[place] {
            let (symbol, n_left) = &mut rules[rule];
            *n_left -= 1;
            if *n_left == 0 && !std::mem::replace(&mut ends[*symbol], true) {
                news.push(*symbol);
            }
        }
    }
    ends[0]
}
