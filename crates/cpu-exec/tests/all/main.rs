//! Operations against naive twins, for every type, path and shape. One binary, so that the tests link once.

mod attention;
mod linear;
