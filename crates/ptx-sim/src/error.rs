//! [`LoadError`] and [`LaunchError`]: why a module or a launch was refused before anything ran.
//!
//! Faults of a running kernel are [`Finding`]s.

use crate::Finding;

/// Why PTX text cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The text does not follow the grammar.
    #[error("line {line}: expected {expected}, found {found}")]
    Syntax {
        /// Line of the PTX text.
        line: u32,
        /// The construct that the grammar expects there.
        expected: String,
        /// The text found there.
        found: String,
    },
    /// An opcode or a modifier that the interpreter does not execute exactly.
    #[error("line {line}: `{mnemonic}` is not executed by this interpreter")]
    UnsupportedInstruction {
        /// Line of the PTX text.
        line: u32,
        /// The opcode with its modifiers.
        mnemonic: String,
    },
    /// Operands that do not fit the opcode.
    #[error("line {line}: `{mnemonic}` expects {expected}")]
    Operands {
        /// Line of the PTX text.
        line: u32,
        /// The opcode with its modifiers.
        mnemonic: String,
        /// The operands that it expects.
        expected: String,
    },
    /// A name that was not declared.
    #[error("line {line}: `{name}` is not declared")]
    UnknownName {
        /// Line of the PTX text.
        line: u32,
        /// The name.
        name: String,
    },
    /// A call without a body: external, indirect or recursive.
    #[error(
        "line {line}: the call of `{name}` cannot be resolved (external, indirect and recursive calls are not executed)"
    )]
    Call {
        /// Line of the PTX text.
        line: u32,
        /// The function called.
        name: String,
    },
    /// Variables of one space, or parameters, whose total size exceeds an address.
    #[error("the variables of one space up to `{name}` take 4 GiB or more")]
    VariablesTooLarge {
        /// The first that does not fit.
        name: String,
    },
    /// More registers, constants or instructions than an index can represent.
    #[error("kernel `{kernel}` has more than 65536 registers and constants of one width")]
    TooLarge {
        /// The kernel.
        kernel: String,
    },
}

/// Why a launch was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The module has no such kernel.
    #[error("no kernel is named `{name}`")]
    UnknownKernel {
        /// The requested name.
        name: String,
    },
    /// Arguments that differ from the kernel's parameters in number.
    #[error("kernel `{kernel}` takes {expected} arguments, {found} were given")]
    ArgumentCount {
        /// The kernel.
        kernel: String,
        /// Parameters it has.
        expected: usize,
        /// Arguments given.
        found: usize,
    },
    /// An argument of another size than its parameter.
    #[error("argument {index} of kernel `{kernel}` has {found} bytes, the parameter has {expected}")]
    ArgumentSize {
        /// The kernel.
        kernel: String,
        /// Which argument, from 0.
        index: usize,
        /// Bytes of the parameter.
        expected: usize,
        /// Bytes of the argument.
        found: usize,
    },
    /// A grid or thread block that no device accepts.
    #[error("kernel `{kernel}`: {what} is {found}, at most {maximum} (and at least 1) is possible")]
    Size {
        /// The kernel.
        kernel: String,
        /// The size that is too large or zero.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The largest possible value.
        maximum: u64,
    },
    /// A fault of a thread block that was run to estimate the launch's time.
    #[error("{finding}")]
    Fault {
        /// The fault.
        finding: Box<Finding>,
    },
}

/// Why a copy between host and device memory was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The range is not inside one live allocation.
    #[error("{bytes} bytes at {address:#x} are not inside a live allocation")]
    OutOfBounds {
        /// First byte.
        address: u64,
        /// Length of the range.
        bytes: usize,
    },
    /// A copy of uninitialized bytes to the host.
    #[error("byte {address:#x} was never written")]
    Uninitialized {
        /// The first such byte.
        address: u64,
    },
    /// The simulated device is full.
    #[error("{bytes} bytes do not fit: {available} of {capacity} bytes are free")]
    OutOfMemory {
        /// Requested bytes.
        bytes: u64,
        /// Bytes free.
        available: u64,
        /// Bytes the device has.
        capacity: u64,
    },
}
