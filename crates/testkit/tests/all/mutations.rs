//! Mutated texts and documents.

use serde_json::{Value, json};
use tokenmill_testkit::{
    json_mutation::{count, mutate_json, node},
    text_mutation::mutate_text,
};

#[test]
fn any_choices_leave_a_text_that_is_one() {
    let mut text = "mov.u32 %r1, 7; // é👩".repeat(3);
    let mut state = 1_usize;
    for _ in 0..2000 {
        mutate_text(&mut text, &["add", "é"], &mut |n| {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            (state >> 33) % n
        });
        if !(1..4096).contains(&text.len()) {
            "mov.u32 %r1, 7; // é👩".clone_into(&mut text);
        }
    }
}

#[test]
fn every_node_is_reached_and_the_same_choices_give_the_same_document() {
    let json = json!({"a": [1, {"b": "text"}], "c": null});
    assert_eq!(count(&json), 6);
    let found: Vec<&Value> = (0..6).filter_map(|index| node(&json, &mut { index })).collect();
    assert_eq!(found.len(), 6);
    assert_eq!(node(&json, &mut 6), None);
    for seed in 0..256_usize {
        let mutated = || {
            let (mut json, mut state) = (json.clone(), seed);
            mutate_json(&mut json, &[json!("f")], &mut |n| {
                state = state * 31 + 7;
                state % n
            });
            json
        };
        assert_eq!(mutated(), mutated());
    }
}
