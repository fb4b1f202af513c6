//! A fence as a column of 64-bit integers, for the libraries of databases.

#[cfg(feature = "sqlx")]
mod with_sqlx {
    use sqlx::encode::IsNull;
    use sqlx::error::BoxDynError;
    use sqlx::{Database, Decode, Encode, Type};

    use crate::types::fence::Fence;

    /// A column of the type that an `i64` has.
    impl<DB: Database> Type<DB> for Fence
    where
        i64: Type<DB>,
    {
        fn type_info() -> DB::TypeInfo {
            <i64 as Type<DB>>::type_info()
        }

        fn compatible(info: &DB::TypeInfo) -> bool {
            <i64 as Type<DB>>::compatible(info)
        }
    }

    impl<'q, DB: Database> Encode<'q, DB> for Fence
    where
        i64: Encode<'q, DB>,
    {
        fn encode_by_ref(&self, buffer: &mut DB::ArgumentBuffer) -> Result<IsNull, BoxDynError> {
            i64::from(*self).encode_by_ref(buffer)
        }
    }

    impl<'r, DB: Database> Decode<'r, DB> for Fence
    where
        i64: Decode<'r, DB>,
    {
        fn decode(value: DB::ValueRef<'r>) -> Result<Fence, BoxDynError> {
            Ok(Fence::try_from(i64::decode(value)?)?)
        }
    }
}

#[cfg(feature = "postgres-types")]
mod with_postgres_types {
    use std::error::Error;

    use bytes::BytesMut;
    use postgres_types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

    use crate::types::fence::Fence;

    /// A column `BIGINT`.
    impl ToSql for Fence {
        fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
            i64::from(*self).to_sql(kind, out)
        }

        accepts!(INT8);
        to_sql_checked!();
    }

    /// From a column `BIGINT`.
    impl<'a> FromSql<'a> for Fence {
        fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Fence, Box<dyn Error + Sync + Send>> {
            Ok(Fence::try_from(i64::from_sql(kind, raw)?)?)
        }

        accepts!(INT8);
    }
}
