package main

import (
	"context"
	"errors"
	"hash/fnv"

	"github.com/jackc/pgx/v5"
)

// Each waiter has a connection, because all waiters of one connection count as one owner.
func connectPostgres(url, name string) (func() (Lock, error), error) {
	hash := fnv.New32a()
	hash.Write([]byte(name))
	key := int64(hash.Sum32())
	return func() (Lock, error) {
		connection, err := pgx.Connect(context.Background(), url)
		return advisoryLock{connection, key}, err
	}, nil
}

type advisoryLock struct {
	connection *pgx.Conn
	key        int64
}

func (l advisoryLock) Acquire() error {
	_, err := l.connection.Exec(context.Background(), "SELECT pg_advisory_lock($1)", l.key)
	return err
}

func (l advisoryLock) Release() error {
	var held bool
	err := l.connection.QueryRow(context.Background(), "SELECT pg_advisory_unlock($1)", l.key).Scan(&held)
	if err == nil && !held {
		err = errors.New("it was not held")
	}
	return err
}
