//! Declares a set of messages once: its types, their numbers, their fields.
//!
//! Arrives: a declaration. Leaves: an enum with `encode` and `decode`. Must not know: what messages say.

/// `NUMBER => Name { field: Type, ... }` for each message. `encode` writes the number and the fields; `decode` refuses
/// unknown numbers and bytes left over.
macro_rules! messages {
    ($(#[$about:meta])* pub enum $set:ident {
        $($(#[$doc:meta])* $number:literal => $name:ident { $($(#[$what:meta])* $field:ident: $kind:ty),* $(,)? }),* $(,)?
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $set {
            $($(#[$doc])* $name { $($(#[$what])* $field: $kind),* }),*
        }

        impl $set {
            /// The bytes of its frame's body.
            pub fn encode(&self) -> Vec<u8> {
                let mut into = Vec::new();
                match self {
                    $(Self::$name { $($field),* } => {
                        $crate::field::Field::put(&($number as u8), &mut into);
                        $($crate::field::Field::put($field, &mut into);)*
                    })*
                }
                into
            }

            /// The message of a frame's body.
            pub fn decode(bytes: &[u8]) -> Result<Self, $crate::WireError> {
                let mut from = $crate::field::Reader(bytes);
                let number: u8 = $crate::field::Field::get(&mut from)?;
                let found = match number {
                    $($number => Self::$name { $($field: $crate::field::Field::get(&mut from)?),* },)*
                    _ => return Err($crate::WireError::Wrong("type")),
                };
                if !from.0.is_empty() {
                    return Err($crate::WireError::Long);
                }
                Ok(found)
            }
        }
    };
}

pub(crate) use messages;
