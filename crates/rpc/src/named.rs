//! Options that are one word of a few.

/// `Display` and `FromStr` of an enum whose values have names in the command line, URLs and the environment.
#[macro_export]
macro_rules! named {
    ($option:ident, $what:literal, $($value:ident = $name:literal),+) => {
        impl $option {
            /// Every value. The C interface numbers them by their places.
            pub const ALL: &'static [$option] = &[$($option::$value),+];
        }

        impl std::fmt::Display for $option {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self { $($option::$value => $name),+ })
            }
        }

        impl std::str::FromStr for $option {
            type Err = String;
            fn from_str(text: &str) -> Result<$option, String> {
                match text {
                    $($name => Ok($option::$value),)+
                    _ => Err(format!("`{text}` is not a {} ({})", $what, [$($name),+].join(", "))),
                }
            }
        }
    };
}
