//! Images against Pillow's, and damaged ones. One binary, so that the tests link once.

mod damage;
mod pillow;
