module tenon.example/client

go 1.19
