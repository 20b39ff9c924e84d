//! [`with_roundings`] adds an explicit rounding to every addition, subtraction and multiplication of floats.
//!
//! PTX lets an assembler fuse a `mul` and an `add` without a rounding, and drivers differ in this, even between two kernels of one module.
//! The results would then depend on the driver, and a row's result on the number of rows in the product. With `.rn` both operations are
//! rounded, as the simulator rounds them. Fused operations that the compiler wrote are `fma.rn`, and stay. Invariant: nothing else of a
//! text changes.

/// Operations that an assembler may fuse.
const FUSED: [&str; 3] = ["add", "sub", "mul"];
/// Modifiers between the operation and its type, in this order.
const MODIFIERS: [&str; 2] = ["ftz", "sat"];
/// Types whose sums and products are rounded.
const FLOATS: [&str; 7] = ["f32", "f64", "f16", "f16x2", "bf16", "bf16x2", "f32x2"];

/// Adds `.rn` to each such instruction without a rounding.
pub(super) fn with_roundings(ptx: &str) -> String {
    let mut text = String::with_capacity(ptx.len() + ptx.len() / 64);
    let mut rest = ptx;
    for word in words(ptx) {
        if let Some(operation) = unrounded(word) {
            let end = word.as_ptr() as usize - rest.as_ptr() as usize + operation.len();
            text.push_str(&rest[..end]);
            text.push_str(".rn");
            rest = &rest[end..];
        }
    }
    text.push_str(rest);
    text
}

/// Counts the instructions without a rounding.
#[cfg(test)]
pub(super) fn n_unrounded(ptx: &str) -> usize {
    words(ptx).filter(|word| unrounded(word).is_some()).count()
}

/// Splits a text into runs of the characters of mnemonics and names.
fn words(ptx: &str) -> impl Iterator<Item = &str> {
    ptx.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '$' | '%')))
}

/// Returns the operation of a mnemonic that may be fused. Memory operations (`atom.add`, `red.add`) have no rounding and do not match.
fn unrounded(word: &str) -> Option<&str> {
    let (operation, modifiers) = word.split_once('.')?;
    if !FUSED.contains(&operation) {
        return None;
    }
    let (modifiers, ty) = modifiers.rsplit_once('.').unwrap_or(("", modifiers));
    let is_plain = modifiers.is_empty() || modifiers.split('.').all(|modifier| MODIFIERS.contains(&modifier));
    (is_plain && FLOATS.contains(&ty)).then_some(operation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_fused_gets_a_rounding_and_nothing_else_changes() {
        let check = |ptx: &str, expected: &str| {
            assert_eq!(with_roundings(ptx), expected);
            assert_eq!(n_unrounded(expected), 0);
        };
        check(
            "\tmul.f32 %f1, %f2, %f3;\n\tadd.ftz.f32 %f4, %f1, 0f3F800000;\n",
            "\tmul.rn.f32 %f1, %f2, %f3;\n\tadd.rn.ftz.f32 %f4, %f1, 0f3F800000;\n",
        );
        // After a predicate, in braces of inline assembly, with another type.
        check(
            "@%p1 sub.f64 %fd1, %fd2, %fd3;",
            "@%p1 sub.rn.f64 %fd1, %fd2, %fd3;",
        );
        check("{mul.f16x2 %r1,%r2,%r3;\n}", "{mul.rn.f16x2 %r1,%r2,%r3;\n}");
        check("add.ftz.sat.f32 a, b, c;", "add.rn.ftz.sat.f32 a, b, c;");
        for kept in [
            "add.rn.f32 %f1, %f2, %f3;",
            "add.rz.ftz.f32 %f1, %f2, %f3;",
            "fma.rn.f32 %f1, %f2, %f3, %f4;",
            "add.s32 %r1, %r2, %r3; mul.wide.u32 %rd1, %r1, 4; mul.lo.s32 %r1, %r2, %r3;",
            "atom.global.add.f32 %f1, [%rd1], %f2; red.global.add.f32 [%rd1], %f1;",
            "// add, then mul\n.visible .entry add(\n",
            "",
        ] {
            check(kept, kept);
        }
    }
}
