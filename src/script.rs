//! The scripts of `lua/`: their texts, their arguments and their replies. The only file that names Lua.
