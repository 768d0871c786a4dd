#!/usr/bin/env bash
# hamba/avro of Go writes some values as others, without an error. A time before 1970 under date is the day after it,
# unless it is midnight; one of another zone is its day in UTC, and under local-timestamp-millis its time in UTC, where
# Avro says that neither has a zone. A decimal of more digits than its scale loses them downwards: 1.999 is 1.99,
# -1.001 is -1.01. An int of 64 bits under int keeps its low bits, 4294967303 is 7, in a union of int and long, too,
# which has a branch for it. twmb/avro writes the day, the wall clock and the long, and refuses the other decimals and
# the int.
# Releases: hamba/avro 2.31.0, twmb/avro 1.9.1. Needs: bash, Go 1.26. Minutes: 0.5.
set -eEuo pipefail
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
trap 'tail -n 20 "$WORK"/*.log >&2 || true; echo "Could not run (line $LINENO)." >&2; exit 2' ERR
mkdir "$WORK/go"
cat >"$WORK/go/main.go" <<'GO'
package main

import (
	"fmt"
	"math/big"
	"time"

	hamba "github.com/hamba/avro/v2"
	twmb "github.com/twmb/avro"
)

type library struct {
	name string
	pass func(schema string, value any) (any, error)
}

// Write and read a value by hamba/avro.
func byHamba(schema string, value any) (read any, err error) {
	parsed := hamba.MustParse(schema)
	written, err := hamba.Marshal(parsed, value)
	if err != nil {
		return nil, err
	}
	return read, hamba.Unmarshal(parsed, written, &read)
}

// Write and read a value by twmb/avro.
func byTwmb(schema string, value any) (read any, err error) {
	parsed := twmb.MustParse(schema)
	written, err := parsed.Encode(value)
	if err != nil {
		return nil, err
	}
	_, err = parsed.Decode(written, &read)
	return read, err
}

func text(value any) string {
	switch v := value.(type) {
	case *big.Rat:
		return v.FloatString(3)
	case time.Time:
		return v.Format("2006-01-02T15:04Z07:00")
	}
	return fmt.Sprint(value)
}

func decimal(digits string) *big.Rat {
	value, _ := new(big.Rat).SetString(digits)
	return value
}

func logical(kind, name, more string) string {
	return fmt.Sprintf(`{"type": %q, "logicalType": %q%s}`, kind, name, more)
}

func main() {
	date, price := logical("int", "date", ""), logical("bytes", "decimal", `, "precision": 10, "scale": 2`)
	before := time.Date(1969, 7, 20, 20, 17, 0, 0, time.UTC)
	local := time.Date(2024, 1, 1, 23, 30, 0, 0, time.FixedZone("", -5*3600))
	for _, one := range []struct {
		name, schema string
		value        any
	}{
		{"date", date, before}, {"date", date, local},
		{"local-timestamp-millis", logical("long", "local-timestamp-millis", ""), local},
		{"decimal, scale 2", price, decimal("1.999")}, {"decimal, scale 2", price, decimal("-1.001")},
		{"int", `"int"`, 1<<32 + 7}, {"int or long", `["int", "long"]`, 1<<32 + 7},
	} {
		fmt.Printf("%s of %s\n", one.name, text(one.value))
		for _, by := range []library{{"hamba", byHamba}, {"twmb", byTwmb}} {
			read, err := by.pass(one.schema, one.value)
			if err != nil {
				read = "refused"
			}
			fmt.Printf("  %s: %s\n", by.name, text(read))
		}
	}
}
GO
(
    cd "$WORK/go"
    export GOFLAGS=-mod=mod GOPATH="${GOPATH:-$(go env GOPATH)}"
    go mod init finding
    go get github.com/hamba/avro/v2@v2.31.0 github.com/twmb/avro@v1.9.1
    go build -o finding .
) >"$WORK/go.log" 2>&1
"$WORK/go/finding" >"$WORK/seen" 2>"$WORK/run.log"
cat >"$WORK/expected" <<'EXPECTED'
date of 1969-07-20T20:17Z
  hamba: 1969-07-21T00:00Z
  twmb: 1969-07-20T00:00Z
date of 2024-01-01T23:30-05:00
  hamba: 2024-01-02T00:00Z
  twmb: 2024-01-01T00:00Z
local-timestamp-millis of 2024-01-01T23:30-05:00
  hamba: 2024-01-02T04:30Z
  twmb: 2024-01-01T23:30Z
decimal, scale 2 of 1.999
  hamba: 1.990
  twmb: refused
decimal, scale 2 of -1.001
  hamba: -1.010
  twmb: refused
int of 4294967303
  hamba: 7
  twmb: refused
int or long of 4294967303
  hamba: 7
  twmb: 4294967303
EXPECTED
what="hamba/avro writes another day, time, decimal or integer than it was given"
cat "$WORK/seen"
diff "$WORK/expected" "$WORK/seen" || { echo "CHANGED: it no longer holds that $what"; exit 1; }
echo "As described: $what"
